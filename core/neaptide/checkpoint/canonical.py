"""Reads and writes strict JSON: no repeated keys, no NaN, limited size. Can sort the keys."""

from __future__ import annotations

import json
import math
from typing import Any

from neaptide.errors import CheckpointError

MAX_VALUES = 1_000_000
"""The largest number of commas and opening brackets in one file. Parsing takes at most 1 s."""
FREE_KEYS = 150_000
BYTES_A_KEY = 512
"""A file may have `FREE_KEYS` colons, plus one colon per `BYTES_A_KEY` bytes of the checkpoint.

A parsed key takes about 300 bytes of memory. Therefore the memory to read a checkpoint is at most
the size of the checkpoint plus 64 MiB.
"""


def dumps(value: Any, *, sort_keys: bool = True, indent: int | None = None) -> bytes:
    """Return `value` as ASCII JSON. If the keys are sorted, equal values give equal bytes.

    Raises TypeError, ValueError or RecursionError for values that JSON cannot express, such as NaN.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        value, sort_keys=sort_keys, indent=indent, separators=separators, allow_nan=False
    ).encode("ascii")


def loads(data: bytes, where: str, total: int = 0) -> Any:
    """Return the value of the JSON text `data` (UTF-8). Error texts contain `where`.

    `total` is the size of the checkpoint in bytes. Raises CheckpointError for invalid JSON, a
    repeated key in an object, NaN, infinity, a number that overflows, more than `MAX_VALUES`
    values, and more keys than `check_keys` allows.
    """
    check_size(data, where)
    check_keys(data.count(b":"), where, total)
    return parse(data, where)


def parse(data: bytes, where: str) -> Any:
    """Parse the JSON text `data` like `loads`, but accept a text of any size. Return the value."""
    try:
        return _STRICT.decode(data.decode("utf-8"))
    except RecursionError:
        msg = f"{where}: nested too deeply"
        raise CheckpointError(msg) from None
    except ValueError as error:
        msg = f"{where}: not strict JSON: {error}"
        raise CheckpointError(msg) from error


def check_size(data: bytes, where: str) -> None:
    """Raise CheckpointError if `data` could hold more than `MAX_VALUES` values.

    Brackets and commas inside strings are also counted, so the check does not parse `data`.
    """
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > MAX_VALUES:
        msg = f"{where}: {values} JSON values, at most {MAX_VALUES}; split it or use tensors"
        raise CheckpointError(msg)


def check_keys(keys: int, where: str, total: int) -> None:
    """Raise CheckpointError if `keys` JSON keys are too many for a checkpoint of `total` bytes."""
    most = FREE_KEYS + total // BYTES_A_KEY
    if keys > most:
        msg = f"{where}: {keys} JSON keys, at most {most} here; use tensors"
        raise CheckpointError(msg)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        msg = "a key occurs twice in one object"
        raise ValueError(msg)
    return found


def _refuse(constant: str) -> Any:
    msg = f"{constant} is not a JSON number"
    raise ValueError(msg)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"{text} overflows"
        raise ValueError(msg)
    return number


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
