"""Reads and writes JSON strictly: a repeated key is an error."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

from neaptide.config.values import TOO_DEEP, TOO_LONG, got, shown, too_deep
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A string before a colon is a key. Other strings are matched to skip the braces inside them.
_TOKEN = re.compile(r"""(?P<key>"(?:[^"\\]|\\.)*+")\s*:|"(?:[^"\\]|\\.)*+"|[{}]""")


def parse(text: str) -> dict[str, Any]:
    """Parse a document; values may be null or NaN.

    Raises ConfigError for a syntax error, a repeated key, nesting that is too deep, and a document
    that is not a table. The error text states the line and column if they are known.
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        msg = f"{error.msg} (at line {error.lineno}, column {error.colno})"
        raise ConfigError(msg) from error
    except ValueError as error:
        raise ConfigError(TOO_LONG) from error
    except RecursionError as error:
        raise ConfigError(TOO_DEEP) from error
    if too_deep(document):
        raise ConfigError(TOO_DEEP)
    repeated = list(_repeated(text))
    if repeated:
        raise ConfigError(*repeated)
    if not isinstance(document, dict):
        msg = f"expected a table (got {got(document)})"
        raise ConfigError(msg)
    return document


def write(table: Mapping[str, Any]) -> str:
    """Return a table of plain values as JSON text, in the order of its keys."""
    return json.dumps(table, indent=2, ensure_ascii=False) + "\n"


def _repeated(text: str) -> Iterator[str]:
    """Yield an error text for each repeated key in the valid JSON `text`."""
    tables: list[Counter[str]] = []
    for token in _TOKEN.finditer(text):
        match token[0][0]:
            case "{":
                tables.append(Counter())
            case "}":
                tables.pop()
            case '"' if token["key"]:
                key = json.loads(token["key"])
                tables[-1][key] += 1
                if tables[-1][key] == 2:  # noqa: PLR2004 - twice
                    yield f"the key {shown(key)} is written twice {place(text, token.start())}"


def place(text: str, position: int) -> str:
    """Return the end of an error text: the line and column of `position` in `text`."""
    line = text.count("\n", 0, position) + 1
    return f"(at line {line}, column {position - text.rfind(chr(10), 0, position)})"
