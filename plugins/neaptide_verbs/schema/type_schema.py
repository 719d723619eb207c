"""Describe config classes in JSON Schema, draft 2020-12."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin

import attrs

from neaptide.config.convert import unstructured

from .validator_schema import constraints

if TYPE_CHECKING:
    from .validator_schema import Schema

_SIMPLE = {
    bool: "boolean",  # before int, its base class
    int: "integer",
    float: "number",
    str: "string",
    PurePath: "string",
    NoneType: "null",
}


def class_schema(cls: type[Any]) -> Schema:
    """Return the schema of the table that a config class accepts.

    Fields without a default are required. Checks in the class's own functions are left out, unless
    `field(schema=…)` describes them.
    """
    known = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
    required = [field.alias for field in known if field.default is attrs.NOTHING]
    return {
        "type": "object",
        "properties": {field.alias: _field_schema(field) for field in known},
        **({"required": required} if required else {}),
        "additionalProperties": False,
    }


def type_schema(type_: Any) -> Schema:
    """Return the schema of the values that can be converted to a type."""
    origin, arguments = get_origin(type_) or type_, get_args(type_)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, UnionType):
        return _any_of([type_schema(argument) for argument in arguments])
    if not isinstance(origin, type):
        return {}
    if attrs.has(origin):
        return class_schema(origin)
    if issubclass(origin, enum.Enum):
        return {"enum": [unstructured(member) for member in origin]}
    for simple, name in _SIMPLE.items():
        if issubclass(origin, simple):
            return {"type": name}
    if issubclass(origin, Mapping):
        inner = type_schema(arguments[1]) if arguments else {}
        return {"type": "object", **({"additionalProperties": inner} if inner else {})}
    return _array(origin, arguments) if issubclass(origin, Iterable) else {}


def _any_of(options: list[Schema]) -> Schema:
    if all(option.keys() == {"type"} for option in options):
        return {"type": [option["type"] for option in options]}
    return {"anyOf": options}


def _array(origin: type[Any], arguments: tuple[Any, ...]) -> Schema:
    if issubclass(origin, tuple) and arguments and arguments[-1] is not Ellipsis:
        items = [type_schema(argument) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "items": False}
    inner = type_schema(arguments[0]) if arguments else {}
    return {"type": "array", **({"items": inner} if inner else {})}


def _field_schema(field: attrs.Attribute[Any]) -> Schema:
    schema = type_schema(Any if field.type is None else field.type)
    for constraint in constraints(field.validator, schema):
        # Two validators may set the same bound; a value must satisfy both.
        clash = schema.keys() & constraint.keys() - {"enum", "items"}
        both = {"allOf": [*schema.get("allOf", ()), constraint]}
        schema |= both if clash else constraint
    schema |= field.metadata.get("schema", {})
    if "help" in field.metadata:
        schema["description"] = field.metadata["help"]
    default = _default(field)
    return schema if default is None else {**schema, "default": default}


def _default(field: attrs.Attribute[Any]) -> Any:
    if field.default is attrs.NOTHING or field.default is None:
        return None
    made = isinstance(field.default, attrs.Factory)  # type: ignore[arg-type]  # a class to attrs
    if not made:
        return unstructured(field.default)
    value = None if field.default.takes_self else field.default.factory()
    # The schema states a section's defaults at the section's own keys.
    return None if value is None or attrs.has(type(value)) else unstructured(value)
