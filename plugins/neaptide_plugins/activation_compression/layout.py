"""The memory layout of a strided tensor: the order of its dimensions and its packed strides."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Sequence


@attrs.frozen
class StridedLayout:
    """A tensor's sizes and strides, and the order of its elements in memory."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    order: tuple[int, ...]
    """Dimensions from the widest stride to the narrowest."""
    packed: tuple[int, ...]
    """Strides of a tensor without gaps whose elements have the same order in memory."""

    @property
    def gapless(self) -> bool:
        """True if the elements are in memory without gaps between them."""
        return self.packed == self.stride

    def flat(self, base: torch.Tensor) -> torch.Tensor:
        """Return the elements `[N]` in memory order: a view, or a copy if there are gaps.

        `base` is a tensor that uses the same storage as the tensor with this layout.
        """
        if self.gapless:
            size = (torch.Size(self.size).numel(),)
            return base.as_strided(size, (1,), self.offset)
        return base.as_strided(self.size, self.stride, self.offset).permute(self.order).reshape(-1)

    def unflatten(self, flat: torch.Tensor) -> torch.Tensor:
        """Return a view of `flat` (elements in memory order) with size `size`, without gaps."""
        return flat.as_strided(self.size, self.packed, 0)


def layout_of(tensor: torch.Tensor) -> StridedLayout | None:
    """Return the layout of `tensor`; None if its elements overlap, as in an expanded tensor."""
    size, stride = tuple(tensor.shape), tensor.stride()
    order = tuple(sorted(range(len(size)), key=lambda dim: (-stride[dim], -size[dim], dim)))
    if not _apart([(size[dim], stride[dim]) for dim in order if size[dim] > 1]):
        return None
    packed, step = list(stride), 1
    for dim in reversed(order):
        if size[dim] > 1:  # the stride of a dimension of size 1 is never used
            packed[dim] = step
            step *= size[dim]
    return StridedLayout(size, stride, int(tensor.storage_offset()), order, tuple(packed))


def _apart(dimensions: Sequence[tuple[int, int]]) -> bool:
    if not dimensions:
        return True
    return dimensions[-1][1] > 0 and all(
        outer >= count * inner for (_, outer), (count, inner) in pairwise(dimensions)
    )
