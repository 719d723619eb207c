"""`field`: an attrs field with a line of help, from which references and schemas are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Validator = Callable[[Any, attrs.Attribute[Any], Any], Any]


def field(
    default: Any,
    *,
    validator: Validator | None = None,
    help: str,  # noqa: A002 - what every settings library calls it
    schema: Mapping[str, Any] | None = None,
) -> Any:
    """Return an attrs field with one line of help, from which the reference is generated.

    An attrs class as the default makes the field a section, with that class's own defaults.
    `schema` adds to the JSON Schema what a validator of your own checks; those of attrs are known.
    """
    if isinstance(default, type) and attrs.has(default):
        default, validator = attrs.Factory(default), instance_of(default)
    return attrs.field(
        default=default, validator=validator, metadata={"help": help, "schema": schema or {}}
    )
