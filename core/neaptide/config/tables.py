"""Merges nested tables, and accesses values by path."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide.config.values import KeyPath


def overlay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`. Tables are merged; other values are replaced."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            merged[key] = overlay(below, value)
        else:
            merged[key] = value
    return merged


def leaves(table: Mapping[str, Any], prefix: KeyPath = ()) -> Iterator[KeyPath]:
    """Yield the path of every value that is not a table, and of every empty table."""
    for key, value in table.items():
        path = (*prefix, key)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, path)
        else:
            yield path


def at(table: Mapping[str, Any], path: KeyPath) -> Any:
    """Return the value at `path`; raise KeyError if there is no value."""
    value: Any = table
    for key in path:
        value = value[key]
    return value


def nested(keys: Sequence[str | int], value: Any) -> dict[str, Any]:
    """Return a nested table with a single value: `value` at the path `keys`."""
    for key in reversed(keys):
        value = {key: value}
    table: dict[str, Any] = value
    return table
