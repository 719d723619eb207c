"""What is at the roots of a recomputed graph, and the gradients that arrive there."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn


@contextmanager
def without_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Let gradients of earlier backwards be, so that this one's are told apart."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, before, strict=True):
            parameter.grad = None
            if gradient is not None and gradient.device == parameter.device:
                parameter.grad = gradient


def before_accumulation(leaves: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return where gradients will be whose strides their leaf's `.grad` would not keep.

    Kernels sum in another order over other strides, so that the next backward would see it.
    """
    found: dict[int, torch.Tensor] = {}
    for index, leaf in enumerate(leaves):
        if leaf.requires_grad:
            # The strides alone: a hook that held its leaf would keep it until garbage is collected.
            look = partial(_noted, found, index, leaf.stride())
            leaf.register_hook(look)  # type: ignore[no-untyped-call]  # torch leaves it so
    return found


def _noted(
    found: dict[int, torch.Tensor], index: int, strides: tuple[int, ...], gradient: torch.Tensor
) -> None:
    if gradient.layout != torch.strided or gradient.stride() != strides:
        found[index] = gradient
