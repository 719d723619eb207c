"""Writes and reads the header of a safetensors file in limited memory.

The file begins with the length of the JSON (8 bytes, little endian). The JSON is an object with one
member `name: {dtype, shape, data_offsets}` per tensor
(https://github.com/huggingface/safetensors, README, "Format").
"""

from __future__ import annotations

import json
import math
import os
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch

from neaptide.errors import CheckpointError
from neaptide.text import brief, called

from . import canonical

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

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
BLOCK = 4096  # bytes of a file system's block: whole ones can be cloned from another file
_MAX_HEADER = 100_000_000
_MAX_DIMENSIONS = 64
_MAX_NAME = 2**16
_MAX_VALUE = 2**12
"""The largest size of one tensor's description, in bytes of JSON."""
_METADATA = "__metadata__"
_SURROGATE = re.compile("[\ud800-\udfff]")
# Patterns that split the header; each part is parsed as strict JSON. They are possessive (`*+`), so
# the match never backtracks.
_KEY = re.compile(rb'[ \t\n\r]*+("(?:[^"\\]++|\\.)*+")[ \t\n\r]*+:[ \t\n\r]*+', re.DOTALL)
_VALUE = re.compile(rb'(\{(?:[^{}"]++|"(?:[^"\\]++|\\.)*+")*+\})[ \t\n\r]*+', re.DOTALL)


class TensorItem(NamedTuple):
    """The description of a tensor to write. A plain tuple is accepted, too."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], AbstractContextManager[torch.Tensor]]
    """Returns a context manager that yields the tensor, of this dtype and shape, on any device."""

    def __repr__(self) -> str:
        return called(self, brief(self.name), str(self.dtype), str(self.shape))


@attrs.frozen
class TensorEntry:
    """The place of a tensor: bytes `start` to `stop` after the header."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def header(items: Iterable[TensorItem], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the header's JSON. The data of the tensors must be written in the order of `items`.

    `metadata` is added to the header: at most 4 KiB. Raises CheckpointError for a dtype that the
    format does not have, and for an invalid or repeated name.
    """
    # transformers refuses a file whose metadata does not name the framework; pt means PyTorch.
    described: dict[str, Any] = {_METADATA: {**(metadata or {}), "format": "pt"}}
    said = json.dumps(described[_METADATA])
    if len(said) > _MAX_VALUE:
        msg = f"{said!r:.100}: a header takes {_MAX_VALUE} bytes of metadata"
        raise CheckpointError(msg)
    position = 0
    for one in items:
        stop = position + math.prod(one.shape) * one.dtype.itemsize
        _check_item(one, described)
        described[one.name] = {
            "dtype": _NAMES[one.dtype],
            "shape": list(one.shape),
            "data_offsets": [position, stop],
        }
        position = stop
    text = json.dumps(described, separators=(",", ":")).encode("ascii")
    text += b" " * (-(8 + len(text)) % (BLOCK if position >= BLOCK else 8))
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
        msg = f"{one.name!r:.100} cannot name a tensor; use valid Unicode, each name once"
        raise CheckpointError(msg)
    if len(json.dumps(one.name)) > _MAX_NAME:
        msg = f"{one.name!r:.100} cannot name a tensor: longer than {_MAX_NAME} bytes; shorten it"
        raise CheckpointError(msg)
    if len(one.shape) > _MAX_DIMENSIONS:
        msg = f"tensor {one.name!r}: {len(one.shape)} dimensions, at most {_MAX_DIMENSIONS}"
        raise CheckpointError(msg)


def read_header(descriptor: int, size: int, where: str) -> tuple[dict[str, TensorEntry], int]:
    """Return the tensors of an open file of `size` bytes, and the offset of the data in the file.

    The tensors are in a dict by name. Raises CheckpointError at the first fault. The error text
    begins with `where`. Needs memory for the header and for the returned entries.
    """
    length = int.from_bytes(os.pread(descriptor, 8, 0), "little")
    if length > min(size - 8, _MAX_HEADER):
        msg = f"{where}: not a safetensors file: a header of {length} bytes in a file of {size}"
        raise CheckpointError(msg)
    text = os.pread(descriptor, length, 8)
    canonical.check_size(text, where)
    entries: dict[str, TensorEntry] = {}
    for name, value in _members(text, where):
        if name in entries:
            msg = f"{where}: not a safetensors file: {name!r:.100} occurs twice"
            raise CheckpointError(msg)
        if name != _METADATA:
            entries[name] = _entry(name, value, where)
    _check_layout(entries, size - 8 - length, where)
    return entries, 8 + length


def _members(text: bytes, where: str) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each member of a JSON object whose values are flat objects."""
    position, end = 1, b","
    if text[:2] == b"{}":
        position, end = 2, b"}"
    while end == b"," and text[:1] == b"{":
        key = _KEY.match(text, position, position + _MAX_NAME)
        if key is None:
            break
        name = canonical.parse(key[1], where)
        value = _VALUE.match(text, key.end(), key.end() + _MAX_VALUE)
        if value is None:
            raise _not_described(name, where)
        yield name, canonical.parse(value[1], where)
        end, position = text[value.end() : value.end() + 1], value.end() + 1
    if end != b"}" or text[position:].strip(b" \t\n\r"):
        msg = f"{where}: not a safetensors file: its header describes no tensors"
        raise CheckpointError(msg)


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
    raise _not_described(name, where)


def _not_described(name: str, where: str) -> CheckpointError:
    return CheckpointError(f"{where}: tensor {name!r:.100}: invalid dtype, shape or offsets")


def _check_layout(entries: Mapping[str, TensorEntry], size: int, where: str) -> None:
    spans = sorted((entry.start, entry.stop) for entry in entries.values())
    bounded = [(0, 0), *spans, (size, size)]
    if any(left[1] != right[0] for left, right in pairwise(bounded)):
        msg = f"{where}: its tensors overlap, leave gaps or do not match the {size} bytes of data"
        raise CheckpointError(msg)
