"""Converts state trees (dicts, lists, numbers, strings, tensors) exactly to JSON and tensors.

A value whose type JSON does not have becomes an object with one key, such as `$tuple`. A dict's key
that begins with `$` is escaped.
"""

from __future__ import annotations

import base64
import math
import re
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from neaptide.errors import CheckpointError

MAX_DEPTH = 64

GetTensor = Callable[[str], torch.Tensor]

_Path = tuple[str, ...]
_INT_KEY = re.compile(r"\$(0|-?[1-9]\d{0,18})")
_WORD = 2**63
_DTYPES = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype)
}
_ENCODE: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    str: lambda value: value,
    # Larger integers are hexadecimal, as Python does not parse more than 4,300 decimal digits.
    int: lambda value: value if -_WORD <= value < _WORD else {"$int": format(value, "x")},
    float: lambda value: (
        value if math.isfinite(value) else {"$float": struct.pack(">d", value).hex()}
    ),
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode("ascii")},
    torch.dtype: lambda value: {"$dtype": str(value).removeprefix("torch.")},
}
_DECODE: dict[str, Callable[[Any], Any]] = {
    "$int": lambda text: int(text, 16),
    "$float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$dtype": lambda text: _DTYPES[text],
}
_TAGS = {"$tensor", "$tuple", "$ordered", *_DECODE}


def flatten(tree: Any, where: str = "state") -> tuple[Any, dict[str, torch.Tensor]]:
    """Return `tree` as JSON with references to tensors, and a dict from references to tensors.

    A reference is the tensor's JSON Pointer (RFC 6901) in the tree. A tensor that occurs twice is
    stored twice. Parameters become plain tensors. The order of dicts is kept. Raises
    CheckpointError for a value that `unflatten` could not restore exactly. The error text contains
    `where` and the path of the value in `tree`.
    """
    tensors: dict[str, torch.Tensor] = {}
    return _encode(tree, (), where, tensors), tensors


def unflatten(structure: Any, get_tensor: GetTensor) -> Any:
    """Return the tree from which `flatten` made `structure`.

    `get_tensor` returns the tensor for a reference. Raises CheckpointError if `flatten` cannot have
    made `structure`, or if `get_tensor` raises KeyError.
    """
    return _decode(structure, get_tensor, 0)


def _encode(value: Any, path: _Path, where: str, tensors: dict[str, torch.Tensor]) -> Any:
    if len(path) > MAX_DEPTH:
        msg = f"{_at(path[:3], where)}...: nested deeper than {MAX_DEPTH} levels; flatten it"
        raise CheckpointError(msg)
    kind = type(value)
    if kind in _ENCODE:
        return _ENCODE[kind](value)
    if kind in (torch.Tensor, nn.Parameter):
        pointer = "".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path)
        tensors[pointer] = _checked(value, path, where)
        return {"$tensor": pointer}
    if kind in (list, tuple):
        children = [
            _encode(child, (*path, str(index)), where, tensors) for index, child in enumerate(value)
        ]
        return children if kind is list else {"$tuple": children}
    if kind in (dict, OrderedDict):
        members = {}
        for key, child in value.items():
            name = _escaped(key, path, where)
            members[name] = _encode(child, (*path, name), where, tensors)
        return members if kind is dict else {"$ordered": members}
    raise _cannot_save(repr(kind.__qualname__), path, where)


def _decode(node: Any, get_tensor: GetTensor, depth: int) -> Any:
    if depth > 2 * MAX_DEPTH:  # a tuple is two levels of JSON
        msg = "a saved state is nested too deeply"
        raise CheckpointError(msg)
    if isinstance(node, list):
        return [_decode(child, get_tensor, depth + 1) for child in node]
    if isinstance(node, dict):
        if len(node) == 1 and (tag := next(iter(node))) in _TAGS:
            return _tagged(tag, node[tag], get_tensor, depth)
        return dict(_members(node, get_tensor, depth))
    return node


def _tagged(tag: str, body: Any, get_tensor: GetTensor, depth: int) -> Any:
    match tag, body:
        case "$tuple", list():
            return tuple(_decode(body, get_tensor, depth + 1))
        case "$ordered", dict():
            return OrderedDict(_members(body, get_tensor, depth + 1))
        case "$tensor", str():
            return _looked_up(body, get_tensor)
    try:
        return _DECODE[tag](body)
    except (ValueError, TypeError, KeyError, struct.error) as error:
        msg = f"a saved state holds {body!r:.100} as {tag!r}, which is invalid"
        raise CheckpointError(msg) from error


def _members(
    node: dict[str, Any], get_tensor: GetTensor, depth: int
) -> Iterator[tuple[str | int, Any]]:
    for name, child in node.items():
        yield _original(name), _decode(child, get_tensor, depth + 1)


def _checked(tensor: torch.Tensor, path: _Path, where: str) -> torch.Tensor:
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        kind = "tensor that is sparse, quantized or on the meta device"
        raise _cannot_save(kind, path, where)
    return tensor


def _looked_up(pointer: str, get_tensor: GetTensor) -> torch.Tensor:
    try:
        return get_tensor(pointer)
    except KeyError as error:
        msg = f"a saved state refers to the tensor {pointer!r:.100}, which its file does not hold"
        raise CheckpointError(msg) from error


def _escaped(key: Any, path: _Path, where: str) -> str:
    if type(key) is str:
        return f"${key}" if key.startswith("$") else key
    if type(key) is int and -_WORD <= key < _WORD:
        return f"${key}"
    kind = f"dict with the key {key!r:.50} of type {type(key).__qualname__!r}"
    raise _cannot_save(kind, path, where)


def _original(name: str) -> str | int:
    if not name.startswith("$"):
        return name
    if name.startswith("$$"):
        return name[1:]
    if _INT_KEY.fullmatch(name):
        return int(name[1:])
    msg = f"a saved state has the invalid key {name!r:.100}"
    raise CheckpointError(msg)


def _at(path: _Path, where: str) -> str:
    return ".".join((where, *(key.removeprefix("$") for key in path)))


def _cannot_save(what: str, path: _Path, where: str) -> CheckpointError:
    return CheckpointError(
        f"{_at(path, where)}: cannot save a {what}; use lists, dicts, numbers, strings, tensors"
    )
