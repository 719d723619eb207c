"""Reads and writes TOML strictly: finite numbers, 64-bit integers, every float bit for bit."""

from __future__ import annotations

import re
import tomllib
from ast import literal_eval
from datetime import date, time
from typing import TYPE_CHECKING, Any

import tomlkit

from neaptide.config.values import MAX_DEPTH, TOO_DEEP, TOO_LONG, dotted, shown, too_deep
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


# A part of a key; strings and comments are matched as well, so that dots in them are passed over.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
_TOKEN = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*+(?:"""|\Z)|'''
    r"""'''(?:[^']|'(?!''))*+(?:'''|\Z)|"""
    rf"#[^\n]*+|(?P<deep>{_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{MAX_DEPTH},}})|{_PART}",
    re.DOTALL,
)


_KEY = rf"{_PART}(?:[ \t]*\.[ \t]*{_PART})*+"
_SETTING = re.compile(rf"^[ \t]*(?:({_KEY})[ \t]*=|\[+[ \t]*({_KEY})[ \t]*\])", re.MULTILINE)
_TWICE = re.compile(
    r"(?:(?:Cannot declare|Cannot mutate immutable namespace|Cannot redefine namespace) "
    r"(?P<path>\(.*\))(?: twice)?|Duplicate inline table key (?P<key>.*)|Cannot overwrite a value)"
    r" (?P<place>\(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\))"
)


def parse(text: str) -> dict[str, Any]:
    """Read a document's syntax and leave its values as TOML has them (nan, dates).

    Raises:
        ConfigError: for a syntax error, with line and column, or too deep a nesting.
    """
    if any(token["deep"] for token in _TOKEN.finditer(text)):
        # tomllib takes a time that grows with the square of a key's parts, minutes for 1 MiB.
        raise ConfigError(TOO_DEEP)
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_said(str(error), text)) from error
    except ValueError as error:
        raise ConfigError(TOO_LONG) from error
    except RecursionError as error:
        raise ConfigError(TOO_DEEP) from error
    if too_deep(document):
        raise ConfigError(TOO_DEEP)
    return document


def _said(problem: str, text: str) -> str:
    """Return what tomllib says of keys and tables written twice in words that name them."""
    match = _TWICE.fullmatch(problem)
    if match is None:
        return problem
    if match["path"]:
        return f"the table {dotted(literal_eval(match['path']))} is written twice {match['place']}"
    if match["key"]:
        key = shown(literal_eval(match["key"]))
    else:
        lines = text.splitlines(keepends=True)
        last = int(match["line"] or len(lines))
        before = [*lines[: last - 1], lines[last - 1][: int(match["column"] or -1)]]
        settings = list(_SETTING.finditer("".join(before)))
        if not settings:
            return problem
        key = settings[-1][1] or settings[-1][2]
    return f"the key {key} is written twice {match['place']}"


def has_comments(text: str) -> bool:
    """Return whether there is a comment in a document that `parse` has read."""
    return any(token[0].startswith("#") for token in _TOKEN.finditer(text))


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


def write(table: Mapping[str, Any]) -> str:
    """Write a table of plain values in the order of its keys; tables come after all else.

    Reading the text and writing it again gives the same text.
    """
    return tomlkit.dumps(_tables_last(table))


def _tables_last(value: Any) -> Any:
    # TOML demands the order; tomlkit's own way there leaves the blank lines of the old order.
    match value:
        case dict():
            items = sorted(value.items(), key=lambda item: _rank(item[1]))
            return {key: _tables_last(item) for key, item in items}
        case list():
            return [_tables_last(item) for item in value]
    return value


def _rank(value: Any) -> int:
    """Return 0 for what stands behind `key =`, 1 for an array of tables, 2 for a table."""
    if isinstance(value, dict):
        return 2
    return 1 if value and isinstance(value, list) and all(isinstance(v, dict) for v in value) else 0
