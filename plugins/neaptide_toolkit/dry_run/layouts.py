"""Strides that the meta device does not know: those of convolutions depend on the backend."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch._prims_common import suggest_memory_format

_FIRST = {
    torch.ops.aten.convolution.default: 0,
    torch.ops.aten.convolution_backward.default: 1,
}
"""Operations that convolve, and the place of the images in their arguments; the weight follows."""


def with_channels_last(operation: Any, args: tuple[Any, ...], made: Any) -> Any:
    """Return the shapes of what a convolution makes, in the order of its images or its weight.

    Its kernels compute with the channels next to each other if one of both has them so
    (`determine_backend_memory_format` of `ATen/native/Convolution.cpp`).
    """
    first = _FIRST.get(operation)
    if first is None:
        return made
    order = next(
        (form for one in args[first : first + 2] if (form := suggest_memory_format(one)) in _LAST),
        None,
    )
    if order is None:
        return made
    if isinstance(made, tuple):
        return tuple(one and _ordered(one, order) for one in made)
    return _ordered(made, order)


_LAST = (torch.channels_last, torch.channels_last_3d)


def _ordered(made: Any, order: torch.memory_format) -> Any:
    if len(made.size) not in (4, 5):  # a bias has one dimension
        return made
    like = torch.empty(made.size, device="meta", memory_format=order)
    return attrs.evolve(made, stride=like.stride())
