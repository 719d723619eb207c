"""Exports the model of a checkpoint to a new directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neaptide.errors import ConfigError
from neaptide_toolkit.export import export
from neaptide_toolkit.saved_runs.finding import find

from .card import card
from .content import content_of
from .views import item

if TYPE_CHECKING:
    from .content import ExportedContent

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def export_run(
    path: Path,
    to: Path | None,
    *,
    dtype: str | None,
    average: bool,
    merge: bool,
    step: int | None,
    shard_bytes: int,
) -> dict[str, Any]:
    """Export the model of the run or checkpoint at `path`; return what was written.

    Raises:
        NeaptideError: there is nothing to export, or the target cannot be written.
    """
    _check_target(to)
    saved = find(path, step)
    target = to or Path(f"{saved.name}-step-{saved.checkpoint.manifest.step}")
    _check_target(target)
    content = content_of(saved, average=average, merge=merge)
    forms = _forms(content, dtype)
    items = [
        item(name, view, content.sources[view.name], forms[name])
        for name, view in content.views.items()
    ]

    def beside(directory: Path) -> None:
        content.write(directory, [one for one in forms.values() if one.is_floating_point])
        text = card(saved, content, target.resolve().name, dtype, average=average, merge=merge)
        (directory / "README.md").write_text(text, encoding="utf-8")

    files = export(items, target, max_shard_bytes=shard_bytes, beside=beside, file=content.file)
    return {
        "directory": str(target),
        "step": saved.checkpoint.manifest.step,
        "checkpoint": str(saved.checkpoint.directory),
        "weights": [file.name for file in files],
        "bytes": sum(file.stat().st_size for file in files),
        "average": average,
    }


def _check_target(target: Path | None) -> None:
    """Raise ConfigError if the target cannot be new, before anything is read."""
    try:
        taken = (
            target is not None
            and target.exists()
            and (not target.is_dir() or any(target.iterdir()))
        )
    except OSError as error:
        msg = f"cannot read {target}: {error.strerror}; export elsewhere @ --to"
        raise ConfigError(msg) from error
    if taken:
        msg = f"{target} exists already; export to a new directory, or move it away @ --to"
        raise ConfigError(msg)


def _forms(content: ExportedContent, wanted: str | None) -> dict[str, torch.dtype]:
    """Return the dtype of each exported tensor, by the name under which it is exported."""
    forms = {name: content.dtypes[view.name] for name, view in content.views.items()}
    if wanted is None:
        return forms
    return {
        name: DTYPES[wanted] if form.is_floating_point else form for name, form in forms.items()
    }
