"""Reads and writes TOML strictly: finite numbers, 64-bit integers, every float bit for bit."""

from __future__ import annotations

import tomllib
from datetime import date, time
from typing import TYPE_CHECKING, Any

import tomlkit

from neaptide.config.values import TOO_DEEP, Invalid, plain, too_deep
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def parse(text: str) -> dict[str, Any]:
    """Read a document's syntax and leave its values as TOML has them (nan, dates).

    Raises:
        ConfigError: for a syntax error, with line and column, or too deep a nesting.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        msg = "an integer has too many digits; at most 64 bits fit"
        raise ConfigError(msg) from error
    except RecursionError as error:
        raise ConfigError(TOO_DEEP) from error
    if too_deep(document):
        raise ConfigError(TOO_DEEP)
    return document


def parse_value(text: str) -> Any:
    """Read one value as it stands after `key =`; what is no TOML value is itself, a string.

    So `3`, `true`, `[1, 2]` and `{a = 1}` need no quotes, and neither does `runs/x`. Dates stay
    strings: no setting is a date, but a directory may well be named after one.
    """
    text = text.strip()
    try:
        document = parse(f"value = {text}")
    except ConfigError:
        return text
    value = document["value"]
    # A line break in `text` would have begun a second setting, or a table.
    return text if len(document) > 1 or isinstance(value, date | time) else value


def loads(text: str) -> dict[str, Any]:
    """Read a document of plain values; floats, `-0.0` among them, come back bit for bit.

    Raises:
        ConfigError: for a syntax error, nan, inf, a date, NUL in a string, an integer beyond 64
            bits, or nesting deeper than `values.MAX_DEPTH`.
    """
    return _plain(parse(text))


def dumps(table: Mapping[str, Any]) -> str:
    """Write a table in the order of its keys, in each table plain values before tables.

    Raises:
        ConfigError: if it holds anything that `loads` would not give back as it is.
    """
    if too_deep(table):
        raise ConfigError(TOO_DEEP)
    return tomlkit.dumps(_plain(table))


def _plain(table: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document: dict[str, Any] = plain(table)
    except Invalid as error:
        raise ConfigError(*map(str, error.problems)) from error
    return document
