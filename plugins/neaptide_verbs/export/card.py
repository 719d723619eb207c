"""The model card: where an exported model comes from."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from neaptide.checkpoint.manifest import MANIFEST, MAX_BYTES, installed_version
from neaptide.checkpoint.verify import read_bytes
from neaptide.text import shorten, visible

if TYPE_CHECKING:
    from neaptide_toolkit.saved_runs.finding import SavedRun

    from .content import ExportedContent


def card(
    saved: SavedRun,
    content: ExportedContent,
    name: str,
    dtype: str | None,
    *,
    average: bool,
    merge: bool,
) -> str:
    """Return the text of README.md.

    Args:
        saved: the checkpoint that is exported.
        content: what is exported of it.
        name: of the exported model.
        dtype: to which weights were converted.
        average: whether the weights are the average of `ema`.
        merge: whether adapters were added to the weights.
    """
    kind = content.kind
    checkpoint = saved.checkpoint
    manifest = read_bytes(checkpoint.directory / MANIFEST, MAX_BYTES)
    scheme, _, base = str(saved.model["name"]).partition(":")
    base = base if kind else f"{scheme}:{base}"
    if kind and Path(base).expanduser().is_dir():
        base = Path(base).resolve().name  # where it lies here is nobody's business
    rows = {
        "run": saved.name,
        "step": str(checkpoint.manifest.step),
        "checkpoint": f"sha256 {hashlib.sha256(manifest).hexdigest()} of its {MANIFEST}",
        "trained by": f"Neaptide {checkpoint.manifest.neaptide}",
        "exported by": f"Neaptide {installed_version()}",
        "base model" if kind else "model": base,
        "weights": "average of the plugin ema" if average else "as trained",
    }
    if content.is_adapter or merge:
        rows["adapters"] = "merged into the weights" if merge else "of peft, for the base model"
    if dtype is not None:
        rows["converted to"] = dtype
    lines = [f"# {_cell(name)}", "", "| | |", "|---|---|"]
    lines += [f"| {key} | {_cell(value)} |" for key, value in rows.items()]
    usage = _adapter(kind) if kind and content.is_adapter else _usage(kind) if kind else _plain()
    lines += ["", *usage]
    library = "peft" if content.is_adapter else "transformers"
    front = ["---", f"library_name: {library}", "tags: [neaptide]", "---", ""] if kind else []
    return "\n".join([*front, *lines, ""])


def _usage(kind: str) -> list[str]:
    code = ["from transformers import " + kind, "", f'model = {kind}.from_pretrained("DIRECTORY")']
    return ["```python", *code, "```"]


def _adapter(kind: str) -> list[str]:
    code = [
        "from peft import PeftModel",
        f"from transformers import {kind}",
        "",
        f'base = {kind}.from_pretrained("BASE")',
        'model = PeftModel.from_pretrained(base, "DIRECTORY")',
    ]
    return ["```python", *code, "```"]


def _plain() -> list[str]:
    code = [
        "from safetensors.torch import load_file",
        "",
        'model.load_state_dict(load_file("DIRECTORY/model.safetensors"), strict=False)',
    ]
    return ["```python", *code, "```"]


def _cell(text: str) -> str:
    """Return a stranger's text as code on one line of a table."""
    plain = visible(shorten(text, 200), kept="").replace("|", "\\|").replace("`", "'")
    return f"`{plain}`"
