"""Handles the leaves of a recomputed graph, and the gradients of these leaves."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import nn

    from neaptide_toolkit.recompute import KeptArgument


@contextmanager
def without_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Hide the gradients of earlier backwards.

    While the context is open, `.grad` contains only the gradient of this backward.
    """
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


def before_accumulation(leaves: Mapping[int, torch.Tensor], found: dict[int, torch.Tensor]) -> None:
    """Register hooks that put gradients of leaves into `found`, by the keys of the leaves.

    The dict gets a gradient only if the strides of the gradient differ from the strides of the
    leaf, or if the gradient is sparse. Autograd gives `.grad` the strides of the leaf. Kernels sum
    in an order that depends on the strides. If the gradient were passed on with the strides of the
    leaf, the bits of the next backward would change.
    """
    for index, leaf in leaves.items():
        if leaf.requires_grad:
            # Pass the strides only: a hook that refers to its leaf would be a reference cycle.
            look = partial(_noted, found, index, leaf.stride())
            leaf.register_hook(look)  # type: ignore[no-untyped-call]  # torch leaves it so


def passed(kept: KeptArgument, leaf: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a repeated call is passed in the place of a kept argument."""
    if kept.is_leaf:
        return leaf
    if kept.copied:  # a leaf that requires grad cannot be changed in place, but its copy can
        return leaf.clone()
    if leaf.requires_grad and torch.is_autocast_cache_enabled():
        # Autocast casts a leaf once, and any other tensor at each read: each cast is a term.
        return leaf.view_as(leaf)
    return leaf


def _noted(
    found: dict[int, torch.Tensor], index: int, strides: tuple[int, ...], gradient: torch.Tensor
) -> None:
    if gradient.layout != torch.strided or gradient.stride() != strides:
        found[index] = gradient
