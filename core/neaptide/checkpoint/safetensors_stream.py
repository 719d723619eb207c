"""Writes and reads safetensors files one tensor at a time, for models larger than memory.

The bytes of each tensor follow the header, in row-major order and without gaps.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from neaptide.errors import CheckpointError

from .safetensors_header import BLOCK, TensorItem, header, read_header
from .verify import Identity, opened, spread

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PIECE = 16 * 2**20
"""The largest number of bytes in one copy from a device, or one read of a file."""


class Sink(Protocol):
    """The file to which tensors are written."""

    def write(self, data: memoryview, /) -> int:
        """Write all of `data`."""


ItemTuple = tuple[
    str, torch.dtype, tuple[int, ...], Callable[[], AbstractContextManager[torch.Tensor]]
]


def resident(name: str, tensor: torch.Tensor) -> TensorItem:
    """Return the TensorItem of a tensor that is already in memory."""
    return TensorItem(name, tensor.dtype, tuple(tensor.shape), lambda: nullcontext(tensor))


def write_tensors(
    file: Sink,
    items: Iterable[TensorItem | ItemTuple],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write a safetensors file. Each item is loaded once and copied in pieces of `PIECE` bytes.

    Items of whole blocks are stored first, then wider dtypes; else the order is kept. Raises
    CheckpointError for items or `metadata` that `header` refuses, and for a tensor whose dtype or
    shape differs from its item.
    """
    # Readers map the file into memory, so each tensor must be aligned to its element size.
    ordered = sorted((TensorItem(*one) for one in items), key=lambda one: -one.dtype.itemsize)
    ordered.sort(key=lambda one: torch.Size(one.shape).numel() * one.dtype.itemsize % BLOCK > 0)
    text = header(ordered, metadata)
    file.write(memoryview(len(text).to_bytes(8, "little") + text))
    for one in ordered:
        _write_tensor(file, one)


def _write_tensor(file: Sink, one: TensorItem) -> None:
    # A separate function, so that no variable holds the tensor while the next tensor is loaded.
    with one.load() as tensor:
        if (tensor.dtype, tuple(tensor.shape)) != (one.dtype, one.shape):
            was, should = _kind(tensor.dtype, tensor.shape), _kind(one.dtype, one.shape)
            msg = f"tensor {one.name!r} is {was}, but its item declares {should}"
            raise CheckpointError(msg)
        for piece in pieces(tensor):
            file.write(piece)


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield the bytes of a strided tensor in row-major order, at most `PIECE` bytes at a time.

    The whole tensor is never copied at once.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.numel() == 0:
        return
    if tensor.is_contiguous():
        for part in torch.split(tensor.reshape(-1).view(torch.uint8), PIECE):
            yield part.cpu().numpy().data
    elif tensor.nbytes <= PIECE:
        yield from pieces(tensor.contiguous())
    else:
        rows = max(1, PIECE * len(tensor) // tensor.nbytes)
        for part in torch.split(tensor, rows) if len(tensor) > 1 else [tensor[0]]:
            yield from pieces(part)


class TensorFile(Mapping[str, torch.Tensor]):
    """The tensors of a safetensors file, read into CPU memory on access.

    `expected` is the identity that the file had when it was verified. The constructor raises
    CheckpointError if the header is invalid or does not describe exactly the bytes after the
    header. The constructor allocates no tensor. A read raises CheckpointError if the file has
    changed since the constructor opened it.
    """

    def __init__(self, path: Path, expected: Identity | None = None) -> None:
        self._path = path
        with opened(path, expected) as (descriptor, self._identity):
            self._entries, self._data = read_header(descriptor, self._identity.bytes, str(path))

    def info(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return the dtype and shape of a tensor."""
        entry = self._entries[name]
        return entry.dtype, entry.shape

    def outline(self, name: str) -> torch.Tensor:
        """Return a tensor on the device `meta`, with the dtype and shape of the tensor `name`."""
        dtype, shape = self.info(name)
        return torch.empty(shape, dtype=dtype, device="meta")

    def whole(self) -> dict[str, torch.Tensor]:
        """Read all tensors with the safetensors library. No two tensors share memory."""
        with opened(self._path, self._identity) as (descriptor, _):
            try:
                # Opened by descriptor, because the path may now be another file. Not mapped: mapped
                # tensors change with the file, and a copy of them takes the memory twice.
                return load_file(f"/dev/fd/{descriptor}", backend="pread")
            except (SafetensorError, OSError) as error:
                msg = f"{self._path}: the safetensors library cannot read it: {error}"
                raise CheckpointError(msg) from error

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        raw = torch.empty(size := entry.stop - entry.start, dtype=torch.uint8)
        if size >= PIECE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # in huge pages, if there are any: they come in less time
                room = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                room.madvise(mmap.MADV_HUGEPAGE)
                raw = torch.frombuffer(room, dtype=torch.uint8)
        self.read_into(name, raw.numpy().data)
        return raw.view(entry.dtype).reshape(entry.shape)

    def read_into(self, name: str, into: memoryview, start: int = 0) -> None:
        """Fill `into` with the bytes of a tensor in row-major order, beginning at byte `start`."""
        entry = self._entries[name]
        if not 0 <= start <= start + len(into) <= entry.stop - entry.start:
            msg = f"{self._path}: tensor {name!r} has no {len(into)} bytes from {start} on"
            raise ValueError(msg)
        first = self._data + entry.start + start
        with opened(self._path, self._identity) as (descriptor, _):

            def read(begin: int) -> None:
                rest, position = into[begin : begin + PIECE], first + begin
                while rest:
                    count = os.preadv(descriptor, [rest], position)
                    if count == 0:
                        msg = f"{self._path} ended inside tensor {name!r}"
                        raise CheckpointError(msg)
                    rest, position = rest[count:], position + count

            spread(read, range(0, len(into), PIECE), large=len(into) > PIECE)

    def copy_to(self, name: str, place: torch.Tensor) -> None:
        """Copy a tensor to `place`, of the same dtype and shape; to a device in pieces of `PIECE`.

        A `place` that is not contiguous takes the whole tensor at once.
        """
        if not place.is_contiguous():
            place.copy_(self[name])
            return
        flat = place.detach().view(-1).view(torch.uint8)
        size = max(1, len(flat)) if flat.is_cpu else PIECE
        for start, part in zip(range(0, len(flat), size), torch.split(flat, size), strict=False):
            read = part if part.is_cpu else torch.empty_like(part, device="cpu")
            self.read_into(name, read.numpy().data, start)
            if read is not part:
                part.copy_(read)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _kind(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
