"""`field`: an attrs field with a line of help, from which references and schemas are made."""

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
    """Base of a section: its repr is one line, of the settings that are not its defaults."""

    def __repr__(self) -> str:
        values = attrs.asdict(self, recurse=False)
        usual = attrs.asdict(type(self)(), recurse=False)
        changed = [f"{key}={value!r}" for key, value in values.items() if value != usual[key]]
        return called(self, *changed)


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
