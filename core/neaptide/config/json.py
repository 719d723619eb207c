"""Reads and writes JSON strictly: no key twice, and numbers as `values.plain` takes them."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

from neaptide.config.values import (
    TOO_DEEP,
    TOO_LONG,
    dotted,
    got,
    shorten,
    too_deep,
)
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from neaptide.config.values import KeyPath


class _Repeating(dict[str, Any]):
    """A table some of whose keys are written more than once."""

    repeated: tuple[str, ...]


def parse(text: str) -> dict[str, Any]:
    """Read a document's syntax and leave its values as JSON has them (null, NaN).

    Raises:
        ConfigError: for a syntax error, with line and column; for keys written twice, with their
            paths; for too deep a nesting, or a document that is no table.
    """
    try:
        document = json.loads(text, object_pairs_hook=_table)
    except json.JSONDecodeError as error:
        msg = f"{error.msg} (at line {error.lineno}, column {error.colno})"
        raise ConfigError(msg) from error
    except ValueError as error:
        raise ConfigError(TOO_LONG) from error
    except RecursionError as error:
        raise ConfigError(TOO_DEEP) from error
    if too_deep(document):
        raise ConfigError(TOO_DEEP)
    repeated = [dotted(path) for path in _repeated(document, ())]
    if repeated:
        raise ConfigError(*(f"the key is written twice @ {shorten(path)}" for path in repeated))
    if not isinstance(document, dict):
        msg = f"expected a table (got {got(document)})"
        raise ConfigError(msg)
    return document


def write(table: Mapping[str, Any]) -> str:
    """Write a table of plain values, its keys in their order."""
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) == len(pairs):
        return table
    repeating = _Repeating(table)
    repeating.repeated = tuple(
        key for key, times in Counter(key for key, _ in pairs).items() if times > 1
    )
    return repeating


def _repeated(value: Any, path: KeyPath) -> Iterator[KeyPath]:
    match value:
        case dict():
            if isinstance(value, _Repeating):
                yield from ((*path, key) for key in value.repeated)
            for key, item in value.items():
                yield from _repeated(item, (*path, key))
        case list():
            for index, item in enumerate(value):
                yield from _repeated(item, (*path, index))
