"""Strict conversion of plain values to config classes: no value is rounded or guessed.

The types of the fields may be bool, int, float, str, Path, Literal, Enum, unions, lists, tuples,
sets, mappings with string keys, `Any`, and other attrs classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import attrs
import cattrs

from neaptide.config.values import (
    Invalid,
    Problem,
    collect,
    convert_all,
    got,
    hint,
    keyed,
    plain,
    reject,
    reject_table,
    shown,
)
from neaptide.errors import suggest
from neaptide.text import shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

T = TypeVar("T")

_LONGEST_MESSAGE = 240
_OPTIONS = "options"  # the key of a section's open table
_NOUNS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_ARRAYS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    tuple: tuple,
    Sequence: tuple,
    set: set,
    frozenset: frozenset,
    AbstractSet: frozenset,
}


def structure_as(value: object, type_: type[T]) -> T:
    """Convert a plain value to `type_`; raise Invalid with all problems and their paths."""
    try:
        return _converter.structure(value, type_)
    except ValueError as error:  # from the constructor of an Enum
        reject(_one_line(error))


def _refuse(type_: Any, value: object) -> NoReturn:
    reject(f"expected {_noun(type_)} (got {got(value)})")


def _noun(type_: Any) -> str:
    origin = get_origin(type_) or type_
    if origin is Literal:
        return f"one of {', '.join(shown(option) for option in get_args(type_))}"
    if origin in _ARRAYS:
        return "an array"
    if isinstance(type_, type) and issubclass(type_, PurePath):
        return "a path"
    return _NOUNS.get(type_, "a table")


def _bool(value: Any, type_: Any) -> bool:
    if not isinstance(value, bool):
        _refuse(type_, value)
    return value


def _int(value: Any, type_: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse(int, value)
    return type_(plain(value))


def _float(value: Any, type_: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _refuse(float, value)
    number = float(plain(value))
    if number != value:
        reject(f"expected a number that a float can hold (got {got(value)})")
    return type_(number)


def _str(value: Any, type_: Any) -> Any:
    if not isinstance(value, str):
        _refuse(str, value)
    return type_(plain(value))


def _path(value: Any, type_: Any) -> Any:
    if not isinstance(value, str | PurePath):
        _refuse(type_, value)
    return type_(plain(str(value)))


def _literal(value: Any, type_: Any) -> Any:
    options = get_args(type_)
    if not any(type(option) is type(value) and option == value for option in options):
        words = [option for option in options if isinstance(option, str)]
        near = suggest(value, words) if isinstance(value, str) else ""
        reject(f"expected {_noun(type_)} (got {got(value)}){near}")
    return value


def _union(value: Any, type_: Any) -> Any:
    if value is None and NoneType in get_args(type_):
        return None
    arms = [arm for arm in get_args(type_) if arm is not NoneType]
    # The type of the value is tried first, so that 3 stays an integer in `float | int`.
    arms.sort(key=lambda arm: arm is not type(value))
    failures = []
    for arm in arms:
        try:
            return structure_as(value, arm)
        except Invalid as error:
            failures.append(error)
    inside = [error for error in failures if any(problem.path for problem in error.problems)]
    if inside or len(failures) == 1:
        raise (inside or failures)[0]
    nouns = " or ".join(map(_noun, arms))
    raise Invalid(Problem(f"expected {nouns} (got {got(value)})"))


def _array(value: Any, type_: Any) -> Any:
    origin, types = get_origin(type_) or type_, get_args(type_) or (Any, ...)
    accepted = (list, tuple, AbstractSet) if issubclass(origin, AbstractSet) else (list, tuple)
    if not isinstance(value, accepted):
        _refuse(type_, value)
    if origin is not tuple or types[-1] is Ellipsis:
        types = (types[0],) * len(value)
    if len(types) != len(value):
        reject(f"expected an array of {len(types)} values (got {len(value)})")
    pairs = enumerate(zip(value, types, strict=True))
    return _ARRAYS[origin](convert_all(pairs, lambda pair: structure_as(*pair)).values())


def _mapping(value: Any, type_: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        reject_table(value)
    inner = (get_args(type_) or (str, Any))[1]
    return convert_all(keyed(value), lambda item: structure_as(item, inner))


def _unknown(key: str, known: Collection[str]) -> Problem:
    is_option = _OPTIONS in known and not suggest(key, known)
    meant = (_OPTIONS, key) if is_option else ()
    return Problem(f"unknown key {shorten(key)!r}{hint(key, known)}", (key,), meant)


def _attrs(value: Any, cls: Any) -> Any:
    if not isinstance(value, Mapping):
        reject_table(value)
    known = {field.alias: field for field in attrs.fields(attrs.resolve_types(cls)) if field.init}
    table = dict(keyed(value))
    unknown = [_unknown(key, known) for key in table if key not in known]
    fields = ((key, (item, known[key])) for key, item in table.items() if key in known)
    values, wrong_types = collect(fields, lambda pair: _field(*pair))
    missing = [
        Problem(f"{key!r} must be given; it has no default")
        for key, field in known.items()
        if field.default is attrs.NOTHING and key not in table
    ]
    problems = unknown + missing + wrong_types
    try:
        built = cls(**values)
    except (ValueError, TypeError) as error:
        # If a problem is known, the constructor's error only repeats it.
        unexplained = [] if missing + wrong_types else [Problem(_one_line(error))]
        problems += _violations(cls, values) or unexplained
    if problems:
        raise Invalid(*problems)
    return built


def _field(value: Any, field: attrs.Attribute[Any]) -> Any:
    section = isinstance(field.type, type) and attrs.has(field.type)
    if value is None and field.default is not None and not section:
        reject("null is not allowed; leave the key out for its default")
    return structure_as(value, Any if field.type is None else field.type)


def _violations(cls: Any, values: Mapping[str, Any]) -> list[Problem]:
    """Run every validator and return all violations. attrs would stop at the first one."""
    given = [field for field in attrs.fields(cls) if field.alias in values]
    draft = _draft(cls, values)
    problems = []
    for field in given:
        value = values[field.alias]
        try:
            if field.validator is not None:
                field.validator(draft, field, value)
        except AttributeError:  # the validator reads a field that has no value
            continue
        except (ValueError, TypeError) as error:
            problems.append(Problem(_violation(field.name, value, error), (field.alias,)))
    return problems


def _draft(cls: Any, values: Mapping[str, Any]) -> Any:
    """Return an unvalidated instance. A field without a value or default is not set."""
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
    # Unify attrs' texts: "must be in [1] (got 2)", "must be >= 1: 0", "(got 2 that is …)."
    text = _one_line(error).removesuffix(f": {value}").rstrip(".")
    if repr(name) not in text:
        text = f"{name!r}: {text}"
    if "(got " in text:
        return text
    found = shown(value) if isinstance(value, str | int | float) else got(value)
    return f"{text} (got {found})"


def _one_line(error: Exception) -> str:
    """Return an error's message, shortened and without line breaks."""
    # args[0] only: attrs' validators add the attribute and the value as further arguments.
    text = str(error.args[0]) if error.args else type(error).__name__
    return shorten(" ".join(text.split()), _LONGEST_MESSAGE)


def _has_origin(origins: AbstractSet[Any], type_: Any) -> bool:
    return (get_origin(type_) or type_) in origins


def _strict_converter() -> cattrs.Converter:
    converter = cattrs.Converter()
    for type_, hook in ((bool, _bool), (int, _int), (float, _float), (str, _str)):
        converter.register_structure_hook(type_, hook)
    for path in (PurePath, Path):
        converter.register_structure_hook(path, _path)
    for origins, hook in (
        ({Any}, lambda value, _: plain(value)),
        ({Literal}, _literal),
        ({Union, UnionType}, _union),
        (_ARRAYS.keys(), _array),
        ({dict, Mapping}, _mapping),
    ):
        converter.register_structure_hook_func(partial(_has_origin, origins), hook)
    converter.register_structure_hook_func(lambda t: isinstance(t, type) and attrs.has(t), _attrs)
    return converter


_converter = _strict_converter()
