"""`field` makes an attrs field with one line of help, for the reference and the JSON Schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
from attrs.validators import instance_of

from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Validator = Callable[[Any, attrs.Attribute[Any], Any], Any]


@attrs.frozen(repr=False)
class ConfigSection:
    """Base class of sections. `repr` is one line with all settings that differ from the default."""

    def __repr__(self) -> str:
        values = attrs.asdict(self, recurse=False)
        usual = attrs.asdict(type(self)(), recurse=False)
        changed = [f"{key}={value!r}" for key, value in values.items() if value != usual[key]]
        return called(self, *changed)


def field(
    default: Any,
    *,
    validator: Validator | None = None,
    help: str,  # noqa: A002 - the usual name in such libraries
    schema: Mapping[str, Any] | None = None,
) -> Any:
    """Return an attrs field with one line of help.

    If the default is an attrs class, the field is a section with the defaults of this class.
    `schema` describes the validator in JSON Schema. A validator of attrs needs no `schema`.
    """
    if isinstance(default, type) and attrs.has(default):
        default, validator = attrs.Factory(default), instance_of(default)
    return attrs.field(
        default=default, validator=validator, metadata={"help": help, "schema": schema or {}}
    )


def check_path(_: object, attribute: attrs.Attribute[str], value: str) -> None:
    """Raise ValueError if a text cannot be a path."""
    if not value or "\0" in value:
        msg = f"{attribute.name!r} must be a path (got {value!r})"
        raise ValueError(msg)
