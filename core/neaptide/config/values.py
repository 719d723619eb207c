"""Plain values (values of TOML's types), paths to values, and problems with values."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import contextmanager
from datetime import date, time
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import attrs

from neaptide.errors import suggest
from neaptide.text import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MAX_DEPTH = 50
"""The largest depth of nested tables and arrays. It is far below Python's recursion limit."""
TOO_DEEP = f"tables and arrays may nest at most {MAX_DEPTH} deep"
TOO_LONG = "an integer has too many digits; at most 64 bits fit"

KeyPath = tuple[str | int, ...]
K = TypeVar("K", str, int)

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_KINDS: tuple[tuple[Any, str], ...] = (
    (bool, "a boolean"),  # before int, of which bool is a subclass
    (str, "a string"),
    (int, "an integer"),
    (float, "a float"),
    ((list, tuple), "an array"),
    (Mapping, "a table"),
    (NoneType, "None"),
)
_INT64 = 2**63


@attrs.frozen
class Problem:
    """A problem with one value. It has the path to this value."""

    message: str
    path: KeyPath = ()
    meant: KeyPath = ()
    """Where the value probably belongs."""

    def under(self, key: str | int) -> Problem:
        """Return the same problem, with `key` before its paths."""
        meant = (key, *self.meant) if self.meant else ()
        return attrs.evolve(self, path=(key, *self.path), meant=meant)

    def __str__(self) -> str:
        instead = f"; write it as {dotted(self.meant)}" if self.meant else ""
        where = f" @ {dotted(self.path)}" if self.path else ""
        return f"{self.message}{instead}{where}"


class Invalid(Exception):  # noqa: N818 - internal: it becomes a ConfigError
    """All problems of one value. The reader of the surrounding table or array catches Invalid."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*map(str, problems))
        self.problems = problems


def reject(message: str) -> NoReturn:
    """Raise Invalid with a single problem. The problem has no path yet."""
    raise Invalid(Problem(message))


def reject_table(value: object) -> NoReturn:
    """Raise Invalid for a value that should be a table."""
    # In YAML, `name:` without a value is null.
    way_out = "; write {} for an empty one" if value is None else ""
    reject(f"expected a table (got {got(value)}){way_out}")


@contextmanager
def gathering(problems: list[Problem]) -> Iterator[None]:
    """Catch Invalid from the block and add its problems to `problems`."""
    try:
        yield
    except Invalid as error:
        problems.extend(error.problems)


def collect(
    items: Iterable[tuple[K, Any]], convert: Callable[[Any], Any]
) -> tuple[dict[K, Any], list[Problem]]:
    """Convert every value; return the converted values by key, and all problems."""
    done: dict[K, Any] = {}
    problems: list[Problem] = []
    for key, value in items:
        found: list[Problem] = []
        with gathering(found):
            done[key] = convert(value)
        problems += [problem.under(key) for problem in found]
    return done, problems


def convert_all(items: Iterable[tuple[K, Any]], convert: Callable[[Any], Any]) -> dict[K, Any]:
    """Convert every value. If there are problems, raise Invalid with all of them."""
    done, problems = collect(items, convert)
    if problems:
        raise Invalid(*problems)
    return done


def dotted(path: KeyPath) -> str:
    """Return a path as in TOML, such as `plugins."odd name".sizes[2]`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else _quote(part)
            text += f".{key}" if text else key
    return text


def got(value: object) -> str:
    """Describe an unexpected value for an error text, such as `"3", a string`."""
    other = f"an object of type {type(value).__name__}"
    kind = next((noun for types, noun in _KINDS if isinstance(value, types)), other)
    return f"{shown(value)}, {kind}" if isinstance(value, str | int | float) else kind


def shown(value: str | float) -> str:
    """Return a string, boolean or number as in TOML, on one line, shortened if it is long."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return shorten(_quote(value))
        case int() if not -_INT64 <= value < _INT64:
            # Python does not convert integers of several thousand digits to decimal text.
            return f"one of {value.bit_length()} bits"
    return str(value)


def hint(name: str, known: Iterable[str], label: str = "known") -> str:
    """Return the end of an error text: the name in `known` closest to `name`, or all of `known`."""
    names = list(known)
    return suggest(name, names) or (f" ({label}: {', '.join(names)})" if names else "")


def plain(value: object) -> Any:
    """Return a copy of `value` in the types that TOML and JSON share.

    Raises Invalid if `value` contains nan, inf, an integer beyond 64 bits, NUL or a lone surrogate
    in a string, a key that is not a string, a date, None, or an object of any other type.
    """
    match value:
        case bool():
            return value
        case str():
            return _text(value)
        case int():
            if not -_INT64 <= value < _INT64:
                reject(f"expected an integer of at most 64 bits (got {shown(value)})")
            return int(value)
        case float():
            if not math.isfinite(value):
                reject(f"expected a finite number (got {value!r})")
            return float(value)
        case list() | tuple():
            return list(convert_all(enumerate(value), plain).values())
        case Mapping():
            return convert_all(keyed(value), plain)
        case date() | time():
            reject(f"dates and times must be written as strings (got {value})")
    reject(f"expected a string, a number, a boolean, an array or a table (got {got(value)})")


def keyed(table: Mapping[Any, Any]) -> Iterable[tuple[str, Any]]:
    """Return the items of a table; raise Invalid if a key is not a usable string."""
    for key in table:
        if not isinstance(key, str):
            reject(f"expected a string as the key (got {got(key)})")
        try:
            _text(key, "a key")
        except Invalid as error:
            raise Invalid(*(problem.under(key) for problem in error.problems)) from None
    return table.items()


def too_deep(value: object) -> bool:
    """Return whether `value` nests deeper than `MAX_DEPTH`, or contains itself."""
    stack = [(value, 1)]
    while stack:
        item, depth = stack.pop()
        if isinstance(item, (Mapping, list, tuple)):
            if depth > MAX_DEPTH:
                return True
            inner = item.values() if isinstance(item, Mapping) else item
            stack += [(child, depth + 1) for child in inner]
    return False


def _text(value: str, what: str = "a string") -> str:
    if "\0" in value:
        reject(f"{what} must not hold the NUL character (got {shown(value)})")
    if any("\ud800" <= character <= "\udfff" for character in value):
        reject(f"{what} must be valid Unicode (got {shown(value)})")
    return str.__str__(value)


def _quote(text: str) -> str:
    # Unprintable characters are escaped, as they could break the line or the encoding.
    return json.dumps(text, ensure_ascii=not text.isprintable())
