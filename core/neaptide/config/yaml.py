"""Reads and writes YAML 1.2 by its core schema, less what can surprise: anchors, tags, merge keys.

PyYAML only splits the text into events, which is safe and imports nothing; what a scalar means is
decided here, because PyYAML follows YAML 1.1, where `2e-5` is a string and `no` is false.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, NoReturn

from neaptide.config.values import MAX_DEPTH, TOO_DEEP, TOO_LONG, got, shorten
from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    Event = Any  # PyYAML's events have no common type that says what they carry

_CONSTANTS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **{
        sign + text: float(f"{sign}inf")
        for sign in ("", "+", "-")
        for text in (".inf", ".Inf", ".INF")
    },
}
_NUMBERS: tuple[tuple[re.Pattern[str], Callable[[str], float]], ...] = (
    (re.compile(r"[-+]?[0-9]+"), int),
    (re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+"), lambda text: int(text, 0)),
    (re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"), float),
)
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# What readers of YAML 1.1 take for something else; quotes keep a written file safe with them too.
_WORDS_OF_1_1 = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_LONGEST_SIMPLE_KEY = 1000
_ANCHORS = "anchors and aliases (&name, *name) are not read; write the value out"
_TAGS = "tags such as !!int are not read; write the plain value"
_MERGE = 'merge keys are not read; write the keys out (or quote "<<")'


def parse(text: str) -> dict[str, Any]:
    """Read a document; an empty one is an empty table. Values stay as YAML has them (null, nan).

    Raises:
        ConfigError: with line and column, for a syntax error, a key that is written twice or is no
            string, an anchor, alias, tag, merge key or second document; for too deep a nesting, or
            a document that is no table.
    """
    import yaml  # noqa: PLC0415 - most files are TOML, and starting must be quick

    try:
        document = _document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        _fail(_one_line(error.problem or error.context), error.problem_mark or error.context_mark)
    except yaml.reader.ReaderError as error:
        before = text[: error.position]
        line, column = before.count("\n") + 1, error.position - (before.rfind("\n") + 1) + 1
        msg = (
            f"the character {error.character:#06x} is not allowed (at line {line}, column {column})"
        )
        raise ConfigError(msg) from error
    except (ValueError, OverflowError) as error:  # of escapes and versions that are no numbers
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(_one_line(str(error))) from error
    if not isinstance(document, dict):
        msg = f"expected a table (got {got(document)})"
        raise ConfigError(msg)
    return document


def has_comments(text: str) -> bool:
    """Return whether there is a comment in a document that `parse` has read."""
    import yaml  # noqa: PLC0415 - as in `parse`

    events: Iterable[Event] = yaml.parse(text, Loader=yaml.SafeLoader)
    between, end = [], 0  # what stands outside of keys and values
    for event in events:
        if type(event).__name__ == "ScalarEvent":
            before, begin, end = end, event.start_mark.index, event.end_mark.index
            # A block's first line holds its indicator, and after that nothing but a comment.
            header = text[begin:end].partition("\n")[0] if event.style in {"|", ">"} else ""
            between += [text[before:begin], header]
    return any("#" in part for part in (*between, text[end:]))


def write(table: Mapping[str, Any]) -> str:
    """Write a table of plain values, its keys in their order."""
    return "".join(f"{line}\n" for line in _table_lines(table)) if table else "{}\n"


def _fail(problem: str, mark: Any) -> NoReturn:
    place = f" (at line {mark.line + 1}, column {mark.column + 1})" if mark else ""
    raise ConfigError(problem + place)


def _one_line(text: str | None) -> str:
    return shorten(" ".join((text or "not YAML").split()), 200)


def _document(events: Iterable[Event]) -> Any:
    stream = iter(events)
    document: Any = {}
    begun = False
    for event in stream:
        match type(event).__name__:
            case "DocumentStartEvent":
                if begun:
                    _fail("a second document begins; one file holds one table", event.start_mark)
                begun = True
                first = next(stream)
                document = _node(first, stream, 1)
                if document is None and not first.value:
                    document = {}
    return document


def _node(event: Event, stream: Iterator[Event], depth: int) -> Any:
    """Return the value that begins with `event`, its other events taken from the stream."""
    kind = type(event).__name__
    if event.anchor is not None:
        _fail(_ANCHORS, event.start_mark)
    if event.tag is not None:
        _fail(_TAGS, event.start_mark)
    if kind == "ScalarEvent":
        return event.value if event.style else _plain(event.value, event.start_mark)
    if depth > MAX_DEPTH:
        _fail(TOO_DEEP, event.start_mark)
    if kind == "MappingStartEvent":
        return _mapping(stream, depth)
    items = []
    while type(item := next(stream)).__name__ != "SequenceEndEvent":
        items.append(_node(item, stream, depth + 1))
    return items


def _mapping(stream: Iterator[Event], depth: int) -> dict[str, Any]:
    table: dict[str, Any] = {}
    while type(event := next(stream)).__name__ != "MappingEndEvent":
        key = _node(event, stream, depth + 1)
        if not isinstance(key, str):
            _fail(f"expected a string as the key (got {got(key)}); quote it", event.start_mark)
        if key == "<<" and not event.style:
            _fail(_MERGE, event.start_mark)
        if key in table:
            _fail(f"the key {shorten(json.dumps(key))} is written twice", event.start_mark)
        table[key] = _node(next(stream), stream, depth + 1)
    return table


def _plain(text: str, mark: Any) -> Any:
    """Return what a scalar without quotes means by the core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    for pattern, number in _NUMBERS:
        if pattern.fullmatch(text):
            try:
                return number(text)
            except ValueError:  # Python reads no decimal integers of several thousand digits
                _fail(TOO_LONG, mark)
    return text


def _table_lines(table: Mapping[str, Any]) -> Iterator[str]:
    for key, value in table.items():
        name = _scalar(key)
        if len(name) > _LONGEST_SIMPLE_KEY:
            yield f"? {name}"
            name = ""
        if value and isinstance(value, dict):
            yield f"{name}:"
            yield from (f"  {line}" for line in _table_lines(value))
        elif value and isinstance(value, list) and not _is_flat(value):
            yield f"{name}:"
            yield from (f"  {line}" for line in _item_lines(value))
        else:
            yield f"{name}: {_inline(value)}"


def _item_lines(items: list[Any]) -> Iterator[str]:
    for item in items:
        if item and isinstance(item, dict):
            lines = _table_lines(item)
        elif item and isinstance(item, list) and not _is_flat(item):
            lines = _item_lines(item)
        else:
            lines = iter((_inline(item),))
        yield f"- {next(lines)}"
        yield from (f"  {line}" for line in lines)


def _is_flat(items: list[Any]) -> bool:
    """Return whether an array holds no filled table, however deep."""
    return not any(
        bool(item) if isinstance(item, dict) else isinstance(item, list) and not _is_flat(item)
        for item in items
    )


def _inline(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return "{}" if isinstance(value, dict) else _scalar(value)


def _scalar(value: str | float) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            safe = _WORD.fullmatch(value) and value.lower() not in _WORDS_OF_1_1
            return value if safe else _quoted(value)
        case float():
            # Readers of YAML 1.1 want a point in the mantissa and a sign in the exponent.
            mantissa, e, exponent = repr(value).partition("e")
            return f"{mantissa if '.' in mantissa else f'{mantissa}.0'}{e}{exponent}"
    return str(value)


def _quoted(text: str) -> str:
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    if character in "\n\t":
        return "\\n" if character == "\n" else "\\t"
    return f"\\U{ord(character):08x}"
