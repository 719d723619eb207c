"""The place of each tensor of a group in one flat buffer of bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.checkpoint.safetensors_header import BLOCK
from neaptide.text import one_line

from .evicted import ALIGNMENT
from .storages import is_dense

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@attrs.frozen
class Place:
    """One tensor's place in the buffer: the offset in bytes, the dtype, the shape, the strides."""

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the values, without padding for alignment."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@attrs.frozen
class BufferLayout:
    """The places of a group of tensors, in their order, and the size of their buffer in bytes."""

    places: tuple[Place, ...]
    bytes: int

    __repr__ = one_line

    @classmethod
    def of(
        cls, tensors: Iterable[torch.Tensor], dtypes: Sequence[torch.dtype] | None = None
    ) -> BufferLayout:
        """Assign an aligned place to each tensor. The strides of a dense tensor are kept.

        Tensors of whole blocks of a file system come first, so that they begin at a block.

        Args:
            tensors: only their shapes, strides and dtypes are used.
            dtypes: the stored dtype of each tensor; by default the tensor's dtype.
        """
        places, offset = [], 0
        for index, tensor in enumerate(tensors):
            strides = tensor.stride() if is_dense(tensor) else _contiguous(tensor.shape)
            dtype = dtypes[index] if dtypes else tensor.dtype
            places.append(Place(0, dtype, tuple(tensor.shape), tuple(strides)))
        for index in sorted(range(len(places)), key=lambda index: places[index].bytes % BLOCK > 0):
            places[index] = attrs.evolve(places[index], offset=offset)
            offset += -(-places[index].bytes // ALIGNMENT) * ALIGNMENT
        return cls(tuple(places), offset)

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return a typed view of `flat` for each place; `flat` is uint8 `[n]`, n >= `bytes`."""
        return [_view(flat, place) for place in self.places]


def _view(flat: torch.Tensor, place: Place) -> torch.Tensor:
    typed = flat[place.offset : place.offset + place.bytes].view(place.dtype)
    return typed.as_strided(place.shape, place.strides)


def _contiguous(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(1, size)
    return strides[::-1]
