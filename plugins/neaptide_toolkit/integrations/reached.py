"""A loss for middleware that looks at the graph of a forward, where the loss is not known yet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from neaptide.tensors import batch_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator


def reached(output: Any) -> torch.Tensor | None:
    """Return a 0-dim tensor whose graph has those of all tensors in the output of a model."""
    parts = [
        one.reshape(-1)[:1].sum().float()
        for one in _tensors(output)
        if one.requires_grad and one.is_floating_point()
    ]
    return torch.stack(parts).sum() if parts else None


def _tensors(output: Any) -> Iterator[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict | list | tuple):
        for one in output.values() if isinstance(output, dict) else output:
            yield from _tensors(one)
    else:
        yield from batch_tensors(output)
