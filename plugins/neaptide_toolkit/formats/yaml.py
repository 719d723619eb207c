"""Reads and writes YAML (the core schema of YAML 1.2) without anchors, tags and merge keys.

PyYAML's own types follow YAML 1.1, in which `2e-5` is a string and `no` is false.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import yaml

from neaptide.config.values import MAX_DEPTH, TOO_DEEP, TOO_LONG, got, shown
from neaptide.errors import ConfigError
from neaptide.text import shorten

from .json import place

if TYPE_CHECKING:
    from collections.abc import Mapping

SUFFIXES = (".yaml", ".yml")
_TAG = "tag:yaml.org,2002:"
_CORE_SCHEMA = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Words that YAML 1.1 reads as booleans or null; they are written in quotes.
_WORDS_OF_1_1 = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_ANCHORS = "anchors and aliases (&name, *name) are not read; write the value out"
_TAGS = "tags such as !!int are not read; write the plain value"
_MERGE = 'merge keys are not read; write the keys out (or quote "<<")'
_SECOND = "a second document begins; one file holds one table"


_MOST = 50_000
_TOO_MANY = f"more than {_MOST:,} values, the most for a configuration"


class _Loader(yaml.SafeLoader):
    _depth = _values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        _check(event.anchor is None, _ANCHORS, event.start_mark)
        _check(event.tag is None, _TAGS, event.start_mark)
        self._values += 1
        _check(self._values <= _MOST, _TOO_MANY, event.start_mark)
        inner = not isinstance(event, yaml.ScalarEvent)
        _check(not inner or self._depth < MAX_DEPTH, TOO_DEEP, event.start_mark)
        self._depth += inner
        node = super().compose_node(parent, index)
        self._depth -= inner
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002 - as in PyYAML
        table: dict[str, Any] = {}
        for name, value in node.value:
            key, mark = self.construct_object(name, deep=True), name.start_mark
            is_text = isinstance(key, str)
            _check(is_text, f"expected a string as the key (got {got(key)}); quote it", mark)
            _check(key != "<<" or name.style, _MERGE, mark)
            _check(key not in table, f"the key {shown(key)} is written twice", mark)
            table[key] = self.construct_object(value, deep=deep)
        return table

    def construct_yaml_int(self, node: Any) -> int:
        try:
            return int(node.value, 0 if node.value[:2] in {"0o", "0x"} else 10)
        except ValueError:  # a decimal integer of several thousand digits
            raise yaml.MarkedYAMLError(problem=TOO_LONG, problem_mark=node.start_mark) from None


_Loader.yaml_implicit_resolvers = {}  # remove the resolvers of YAML 1.1
for _name, _pattern in _CORE_SCHEMA.items():
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"(?:{_pattern})\Z"), None)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002, FBT001, FBT002 - as in PyYAML
        super().increase_indent(flow, indentless=False)

    def represent_sequence(self, tag: str, sequence: Any, _: Any = None) -> yaml.SequenceNode:
        node = super().represent_sequence(tag, sequence)
        # An array is written on one line if it contains only values, empty tables and such arrays.
        node.flow_style = all(getattr(one, "flow_style", 1) or not one.value for one in node.value)
        return node

    def represent_scalar(self, tag: str, value: str, _: Any = None) -> yaml.ScalarNode:
        word = _WORD.fullmatch(value) and value.lower() not in _WORDS_OF_1_1
        return super().represent_scalar(tag, value, None if word or tag != f"{_TAG}str" else '"')


def parse(text: str) -> dict[str, Any]:
    """Parse a document; an empty document is an empty table. Values may be null or nan.

    Raises ConfigError for a syntax error, a repeated key, a key that is not a string, an anchor,
    alias, tag, merge key or second document, nesting that is too deep, and a document that is not a
    table. The error text states the line and column if they are known.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        empty = node is None or (node.value == "" and node.tag == f"{_TAG}null")
        document = {} if empty else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark: Any = error.problem_mark
        problem = _SECOND if isinstance(error, yaml.composer.ComposerError) else str(error.problem)
        msg = f"{shorten(problem, 200)} (at line {mark.line + 1}, column {mark.column + 1})"
        raise ConfigError(msg) from error
    except yaml.reader.ReaderError as error:
        msg = f"the character {error.character:#06x} is not allowed {place(text, error.position)}"
        raise ConfigError(msg) from error
    except (ValueError, OverflowError) as error:  # an invalid number in an escape
        raise ConfigError(shorten(str(error), 200)) from error
    if not isinstance(document, dict):
        msg = f"expected a table (got {got(document)})"
        raise ConfigError(msg)
    return document


def write(table: Mapping[str, Any]) -> str:
    """Return a table of plain values as YAML text, in the order of its keys."""
    return yaml.dump(table, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def _check(fine: object, problem: str, mark: Any) -> None:
    if not fine:
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=mark)
