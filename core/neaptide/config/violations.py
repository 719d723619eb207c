"""Runs the validators of a config class one by one, so that every violation is reported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.values import Problem, got, shorten, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_MESSAGE = 240


def violations(cls: Any, values: Mapping[str, Any]) -> list[Problem]:
    """Run every validator by itself, where attrs stops at the first that fails."""
    given = [field for field in attrs.fields(cls) if field.alias in values]
    draft = _draft(cls, values)
    problems = []
    for field in given:
        value = values[field.alias]
        try:
            if field.validator is not None:
                field.validator(draft, field, value)
        except AttributeError:  # it compares with a field that has no value
            continue
        except (ValueError, TypeError) as error:
            problems.append(Problem(_violation(field.name, value, error), (field.alias,)))
    return problems


def _draft(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an instance that no validator has seen; fields without any value are not set."""
    draft = object.__new__(cls)
    for field in attrs.fields(cls):
        if field.alias in values:
            value = values[field.alias]
        elif isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # a class to attrs
            made_of = (draft,) if field.default.takes_self else ()
            value = field.default.factory(*made_of)
        else:
            value = field.default
        if value is not attrs.NOTHING:
            object.__setattr__(draft, field.name, value)  # the class may be frozen
    return draft


def _violation(name: str, value: object, error: Exception) -> str:
    # attrs writes "'x' must be in [1] (got 2)", but "'x' must be >= 1: 0" and "(got 2 that is …)."
    text = one_line(error).removesuffix(f": {value}").rstrip(".")
    if repr(name) not in text:
        text = f"{name!r}: {text}"
    if "(got " in text:
        return text
    found = shown(value) if isinstance(value, str | int | float) else got(value)
    return f"{text} (got {found})"


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks, shortened."""
    # attrs validators pass the attribute and the value as further arguments.
    text = str(error.args[0]) if error.args else type(error).__name__
    return shorten(" ".join(text.split()), _LONGEST_MESSAGE)
