"""Describe the validators of attrs in JSON Schema.

Validators that are plain functions are skipped.
"""

from __future__ import annotations

import math
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

from neaptide.config.convert import unstructured

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Schema = dict[str, Any]

_BOUNDS = {
    ">=": "minimum",
    ">": "exclusiveMinimum",
    "<=": "maximum",
    "<": "exclusiveMaximum",
}
_LENGTHS = {"string": "Length", "array": "Items", "object": "Properties"}


def constraints(validator: Any, schema: Schema) -> Iterator[Schema]:
    """Yield a validator's constraints on values of the type that `schema` describes."""
    # The classes of attrs' validators (ge, in_, …) are private, but their attributes are stable.
    reader = _READERS.get(type(validator).__name__)
    return iter(()) if reader is None else reader(validator, schema)


def _and(validator: Any, schema: Schema) -> Iterator[Schema]:
    for part in getattr(validator, "_validators", ()):
        yield from constraints(part, schema)


def _optional(validator: Any, schema: Schema) -> Iterator[Schema]:
    for constraint in constraints(validator.validator, schema):
        allowed = {"enum": [*constraint["enum"], None]} if "enum" in constraint else {}
        yield {**constraint, **allowed}


def _number(validator: Any, _: Schema) -> Iterator[Schema]:
    if math.isfinite(validator.bound):
        yield {_BOUNDS[validator.compare_op]: validator.bound}


def _in(validator: Any, _: Schema) -> Iterator[Schema]:
    if isinstance(validator.options, list | tuple | AbstractSet):
        yield {"enum": unstructured(validator.options)}


def _matches(validator: Any, _: Schema) -> Iterator[Schema]:
    yield {"pattern": f"^(?:{validator.pattern.pattern})$"}


def _shortest(validator: Any, schema: Schema) -> Iterator[Schema]:
    yield {f"min{noun}": validator.min_length for noun in _measures(schema)}


def _longest(validator: Any, schema: Schema) -> Iterator[Schema]:
    yield {f"max{noun}": validator.max_length for noun in _measures(schema)}


def _measures(schema: Schema) -> list[str]:
    kinds = schema.get("type", ())
    return [_LENGTHS[kind] for kind in _LENGTHS if kind == kinds or kind in list(kinds)]


def _members(validator: Any, schema: Schema) -> Iterator[Schema]:
    items = schema.get("items", {})
    for constraint in constraints(validator.member_validator, items):
        items = {**items, **constraint}
    yield {"items": items}


_READERS: dict[str, Callable[[Any, Schema], Iterator[Schema]]] = {
    "_AndValidator": _and,
    "_OptionalValidator": _optional,
    "_NumberValidator": _number,
    "_InValidator": _in,
    "_MatchesReValidator": _matches,
    "_MinLengthValidator": _shortest,
    "_MaxLengthValidator": _longest,
    "_DeepIterable": _members,
}
