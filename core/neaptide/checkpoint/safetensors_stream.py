"""safetensors files written and read one tensor at a time, for models larger than memory.

The format: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes in
row-major order without gaps (https://github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import attrs
import torch

from neaptide.errors import CheckpointError

from . import canonical
from .verify import Identity, opened

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PIECE = 16 * 2**20
"""Bytes copied off a device, or read from a file, at a time."""

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "C64": torch.complex64,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000
_MAX_DIMENSIONS = 64
_METADATA = "__metadata__"
_SURROGATE = re.compile("[\ud800-\udfff]")


class Sink(Protocol):
    """What tensors are written to."""

    def write(self, data: memoryview, /) -> int:
        """Write all of `data`."""


class TensorItem(NamedTuple):
    """A tensor to be written, known before it is there; a plain tuple will do."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], AbstractContextManager[torch.Tensor]]
    """Gives the tensor, of this dtype and shape on any device, while it is written."""


ItemTuple = tuple[
    str, torch.dtype, tuple[int, ...], Callable[[], AbstractContextManager[torch.Tensor]]
]


@attrs.frozen
class TensorEntry:
    """Where a tensor lies: bytes `start` to `stop` of the data, which follows the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def resident(name: str, tensor: torch.Tensor) -> TensorItem:
    """Return the item of a tensor that is there."""
    return TensorItem(name, tensor.dtype, tuple(tensor.shape), lambda: nullcontext(tensor))


def write_tensors(file: Sink, items: Iterable[TensorItem | ItemTuple]) -> None:
    """Write a safetensors file; every item is loaded once, and its bytes copied in `PIECE`s.

    Wider dtypes come first, otherwise the given order is kept. Raises CheckpointError for dtypes
    the format lacks, bad or repeated names, and a tensor that is not what its item says.
    """
    # Readers map the file and need each tensor aligned to its own width.
    ordered = sorted((TensorItem(*one) for one in items), key=lambda one: -one.dtype.itemsize)
    header = _header(ordered)
    file.write(memoryview(len(header).to_bytes(8, "little")))
    file.write(memoryview(header))
    for one in ordered:
        with one.load() as tensor:
            if (tensor.dtype, tuple(tensor.shape)) != (one.dtype, one.shape):
                was, should = _kind(tensor.dtype, tensor.shape), _kind(one.dtype, one.shape)
                msg = f"tensor {one.name!r} is {was}, but was announced as {should}"
                raise CheckpointError(msg)
            for piece in pieces(tensor):
                file.write(piece)


def pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """Yield a strided tensor's bytes in row-major order, at most `PIECE` at a time.

    No contiguous copy of the whole is made.
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
    """The tensors of a safetensors file, each read into CPU memory when it is asked for.

    Reading raises CheckpointError if the file is no longer the one that was opened.
    """

    def __init__(self, path: Path, expected: Identity | None = None) -> None:
        self._path = path
        with opened(path, expected) as (descriptor, self._identity):
            self._entries, self._data = _read_header(descriptor, self._identity.bytes, str(path))

    def info(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        """Return dtype and shape of a tensor, read from the header alone."""
        entry = self._entries[name]
        return entry.dtype, entry.shape

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        raw = torch.empty(entry.stop - entry.start, dtype=torch.uint8)
        rest = raw.numpy().data
        position = self._data + entry.start
        with opened(self._path, self._identity) as (descriptor, _):
            while rest:
                count = os.preadv(descriptor, [rest[:PIECE]], position)
                if count == 0:
                    msg = f"{self._path} ended inside tensor {name!r}"
                    raise CheckpointError(msg)
                rest, position = rest[count:], position + count
        return raw.view(entry.dtype).reshape(entry.shape)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def open_tensors(path: Path, expected: Identity | None = None) -> TensorFile:
    """Open a safetensors file; `expected` is the identity of the file that was verified.

    Raises CheckpointError, before any tensor is allocated, unless the header is well formed and
    describes exactly the bytes that follow it.
    """
    return TensorFile(path, expected)


def _header(items: list[TensorItem]) -> bytes:
    # The library's readers in transformers refuse a file that does not say whose tensors it holds.
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    position = 0
    for one in items:
        stop = position + math.prod(one.shape) * one.dtype.itemsize
        _check_item(one, header)
        header[one.name] = {
            "dtype": _NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)
    canonical.check_size(text, "the names of one file's tensors")
    if len(text) > _MAX_HEADER:
        msg = f"the names of one file's tensors take {len(text)} bytes, at most {_MAX_HEADER}"
        raise CheckpointError(msg)
    return text


def _check_item(one: TensorItem, taken: Mapping[str, Any]) -> None:
    if one.dtype not in _NAMES:
        msg = f"tensor {one.name!r}: cannot save {one.dtype}; convert it to one of {list(DTYPES)}"
        raise CheckpointError(msg)
    if one.name in taken or _SURROGATE.search(one.name):
        msg = f"{one.name!r} cannot name a tensor; use valid Unicode, each name once"
        raise CheckpointError(msg)
    if len(one.shape) > _MAX_DIMENSIONS:
        msg = f"tensor {one.name!r}: {len(one.shape)} dimensions, at most {_MAX_DIMENSIONS}"
        raise CheckpointError(msg)


def _read_header(descriptor: int, size: int, where: str) -> tuple[dict[str, TensorEntry], int]:
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if length > min(size - 8, _MAX_HEADER):
        msg = f"{where}: not a safetensors file: a header of {length} bytes in a file of {size}"
        raise CheckpointError(msg)
    header = canonical.loads(os.pread(descriptor, length, 8), where)
    if not isinstance(header, dict):
        msg = f"{where}: not a safetensors file: its header is no JSON object"
        raise CheckpointError(msg)
    header.pop(_METADATA, None)
    # Popped, so that a long header is not held twice.
    entries = {name: _entry(name, header.pop(name), where) for name in list(header)}
    _check_layout(entries, size - 8 - length, where)
    return entries, 8 + length


def _entry(name: str, value: Any, where: str) -> TensorEntry:
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [start, stop], **extra} if (
            not extra
            and dtype in DTYPES
            and len(shape) <= _MAX_DIMENSIONS
            and all(type(number) is int and 0 <= number < 2**63 for number in shape)
            and type(start) is int
            and type(stop) is int
            and stop - start == math.prod(shape) * DTYPES[dtype].itemsize
            and math.prod(max(size, 1) for size in shape) < 2**63
        ):
            return TensorEntry(DTYPES[dtype], tuple(shape), start, stop)
    msg = f"{where}: tensor {name!r:.100}: dtype, shape and offsets are no description of a tensor"
    raise CheckpointError(msg)


def _check_layout(entries: Mapping[str, TensorEntry], size: int, where: str) -> None:
    spans = sorted((entry.start, entry.stop) for entry in entries.values())
    bounded = [(0, 0), *spans, (size, size)]
    if any(left[1] != right[0] for left, right in pairwise(bounded)):
        msg = f"{where}: its tensors overlap, leave gaps or do not match the {size} bytes of data"
        raise CheckpointError(msg)


def _kind(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
