"""Reads what a model returns while somebody else calls it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn


@contextmanager
def outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """Yield a list that gets the output of each call of `model` inside the context."""
    found: list[Any] = []
    hook = model.register_forward_hook(lambda _module, _inputs, output: found.append(output))
    try:
        yield found
    finally:
        hook.remove()


def logits_of(output: Any) -> torch.Tensor | None:
    """Return the logits: the output, its entry `logits`, or the first tensor of a tuple."""
    if isinstance(output, torch.Tensor):
        return output
    named = output.get("logits") if isinstance(output, dict) else getattr(output, "logits", None)
    parts = output if isinstance(output, tuple | list) and named is None else (named,)
    return next((part for part in parts if isinstance(part, torch.Tensor)), None)
