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


# A part of a key. `TOKEN` also matches strings and comments, to skip the dots inside them.
_PART = r"""(?:[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""
TOKEN = re.compile(
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
    """Parse a document; values may be nan or dates.

    Raises ConfigError for a syntax error (with line and column) and for nesting that is too deep.
    """
    if any(token["deep"] for token in TOKEN.finditer(text)):
        # The time of tomllib is quadratic in the parts of a key: minutes for a key of 1 MiB.
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
    """Return tomllib's error text, or a text that names the repeated key or table."""
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


def parse_value(text: str) -> Any:
    """Return `text` as a TOML value if it is one, otherwise as a string.

    Therefore `runs/x` needs no quotes. A date is also returned as a string, because no setting is a
    date. The name of a directory may look like a date.
    """
    text = text.strip()
    try:
        document = parse(f"value = {text}")
    except ConfigError:
        return text
    value = document["value"]
    # With more than one key, a line break in `text` has begun a second setting or a table.
    return text if len(document) > 1 or isinstance(value, date | time) else value


def write(table: Mapping[str, Any]) -> str:
    """Return a table of plain values as TOML text in the order of the keys; tables are last.

    If the text is parsed and written again, the result is the same text.
    """
    return tomlkit.dumps(_tables_last(table))


def _tables_last(value: Any) -> Any:
    # Sorted here, as TOML needs this order and tomlkit would keep the old blank lines.
    match value:
        case dict():
            items = sorted(value.items(), key=lambda item: _rank(item[1]))
            return {key: _tables_last(item) for key, item in items}
        case list():
            return [_tables_last(item) for item in value]
    return value


def _rank(value: Any) -> int:
    """Return 2 for a table, 1 for an array of tables, 0 for any other value."""
    if isinstance(value, dict):
        return 2
    return 1 if value and isinstance(value, list) and all(isinstance(v, dict) for v in value) else 0
