"""Builds the model of a run, loads its trained weights, and lets it continue a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from neaptide.config import structure
from neaptide.errors import ConfigError
from neaptide.run.assembly import choose_device
from neaptide_toolkit.saved_runs.building import HUGGING_FACE, LORA, build, scheme_of
from neaptide_toolkit.saved_runs.finding import find
from neaptide_toolkit.saved_runs.loading import load_weights

from .by_bytes import continued

if TYPE_CHECKING:
    from neaptide_toolkit.saved_runs.finding import SavedRun

_BYTES = ("builtin", "byte-gpt")


def sample_run(
    path: Path,
    prompt: str,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    raw: bool,
    step: int | None,
    device: str,
) -> dict[str, Any]:
    """Return the text with which the model of a run continues `prompt`.

    Raises:
        NeaptideError: there is no such model, or it is not a language model.
    """
    where = structure({"train": {"device": device}}, {}).train.device
    saved = find(path, step)
    scheme = scheme_of(saved.model)
    model = _built(saved, scheme[0])
    generates = getattr(model, "can_generate", None)
    if scheme != _BYTES and not (generates is not None and generates()):
        msg = (
            f"{saved.model['name']!r:.200} is not a language model that generates text @ model.name"
        )
        raise ConfigError(msg)
    load_weights(model, saved.checkpoint)
    model.eval().to(choose_device(where, None))
    torch.manual_seed(seed)
    if scheme == _BYTES:
        text = continued(model, prompt, tokens, temperature)
    else:
        from .by_transformers import generated  # noqa: PLC0415 - it needs transformers

        text = generated(model, saved, prompt, tokens, temperature, raw=raw)
    return {"text": text, "prompt": prompt, "step": saved.checkpoint.manifest.step}


def _built(saved: SavedRun, scheme: str) -> Any:
    # The weights of the base model are not needed: all are in the checkpoint.
    changes: dict[str, Any] = (
        {"from_config": True, "download": False} if scheme == HUGGING_FACE else {}
    )
    return build(saved.model, saved.plugins.get(LORA), **changes)
