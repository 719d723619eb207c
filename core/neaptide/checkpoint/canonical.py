"""Strict JSON: no duplicate keys, no NaN, bounded size; canonical where a digest is taken of it."""

from __future__ import annotations

import json
import math
from typing import Any

from neaptide.errors import CheckpointError

MAX_VALUES = 1_000_000
"""Commas and opening brackets in one file; bounds parsing to a second."""
FREE_KEYS = 150_000
BYTES_A_KEY = 512
"""A file may have `FREE_KEYS` colons, and one more for as many bytes as its checkpoint has.

A key costs some 300 bytes of memory while it is parsed: reading then takes less than 64 MiB beyond
what the checkpoint itself is large.
"""


def dumps(value: Any, *, sort_keys: bool = True, indent: int | None = None) -> bytes:
    """Return `value` as ASCII JSON; equal values give equal bytes when keys are sorted.

    Raises TypeError, ValueError or RecursionError for what is not JSON, NaN and infinity included.
    """
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(
        value, sort_keys=sort_keys, indent=indent, separators=separators, allow_nan=False
    ).encode("ascii")


def loads(data: bytes, where: str, total: int = 0) -> Any:
    """Return the value `data` (UTF-8) holds; `where` names the file in errors.

    `total` is the size in bytes of the checkpoint it is part of. Raises CheckpointError unless it
    is JSON with one meaning: a key twice in an object, NaN, infinity and numbers that overflow are
    refused, as is more than `MAX_VALUES` and more keys than the checkpoint's size allows.
    """
    check_size(data, where)
    check_keys(data.count(b":"), where, total)
    return parse(data, where)


def parse(data: bytes, where: str) -> Any:
    """Return the value that `data` holds, as `loads` does, of any size."""
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

    Counted in the text, strings included, so that writer and reader agree before any parsing.
    """
    values = data.count(b",") + data.count(b"[") + data.count(b"{")
    if values > MAX_VALUES:
        msg = f"{where}: {values} JSON values, at most {MAX_VALUES}; split it or use tensors"
        raise CheckpointError(msg)


def check_keys(keys: int, where: str, total: int) -> None:
    """Raise CheckpointError if a file of `keys` colons is too much for a checkpoint of `total`."""
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
    msg = f"{constant} is not a number of JSON"
    raise ValueError(msg)


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = f"{text} overflows"
        raise ValueError(msg)
    return number


_STRICT = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_refuse, parse_float=_finite)
