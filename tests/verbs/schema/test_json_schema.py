"""The JSON Schema says what `structure` says, as far as single keys go."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping  # noqa: TC003 - read from the classes below
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs.validators import (
    and_,
    deep_iterable,
    ge,
    gt,
    in_,
    le,
    lt,
    matches_re,
    max_len,
    min_len,
    optional,
)
from config_strategies import SPECS, configs
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError

from neaptide.config import field, structure, unstructure
from neaptide.errors import ConfigError, PluginError
from neaptide.hooks.registry import Installed, Registry, installed_plugins
from neaptide.plugin import PluginSpec
from neaptide_verbs.schema.json_schema import json_schema
from neaptide_verbs.schema.type_schema import class_schema

INSTALLED = installed_plugins()
SCHEMA, LEFT_OUT = json_schema(INSTALLED)
VALIDATOR = Draft202012Validator(SCHEMA)
LAWS = Draft202012Validator(json_schema(SPECS)[0])


SIMPLE = re.compile(r"expected |unknown key |'\w+' must be (>=|>|<=|<|in) ")


def refusals(table: Any) -> list[str]:
    """Return why `structure` refuses a table."""
    try:
        structure(table, INSTALLED)
    except ConfigError as error:
        return list(error.problems)
    return []


def check(table: Any) -> None:
    """Check that what is refused for a simple reason is invalid, and what is taken is valid."""
    problems = refusals(table)
    if any(map(SIMPLE.match, problems)):
        assert not VALIDATOR.is_valid(table), problems
    elif not problems:
        VALIDATOR.validate(table)


def test_it_is_a_json_schema_of_the_draft_it_names() -> None:
    assert {} == LEFT_OUT
    Draft202012Validator.check_schema(SCHEMA)
    assert Draft202012Validator.META_SCHEMA["$id"] == SCHEMA["$schema"]


def tables_of(schema: dict[str, Any]) -> Any:
    """Yield every table that closes itself to unknown keys."""
    if "properties" in schema:
        yield schema
        for inner in schema["properties"].values():
            yield from tables_of(inner)


def test_every_setting_has_its_help_and_default() -> None:
    for table in tables_of(SCHEMA):
        assert False is table["additionalProperties"]
        for name, setting in table["properties"].items():
            assert name == "plugins" or "description" in setting
    train = SCHEMA["properties"]["train"]["properties"]
    assert {
        "type": "integer",
        "minimum": 1,
        "description": "updates in the whole run",
        "default": 1000,
    } == train["steps"]


def test_every_plugin_can_be_enabled_and_offers_its_presets() -> None:
    tables = SCHEMA["properties"]["plugins"]["properties"]
    assert list(INSTALLED) == list(tables)
    for name, spec in INSTALLED.items():
        assert "boolean" == tables[name]["properties"]["enabled"]["type"]
        offered = tables[name]["properties"].get("preset", {}).get("enum", [None])
        assert [*spec.presets, None] == offered


@given(configs)
def test_every_effective_configuration_is_valid(config: Any) -> None:
    LAWS.validate(unstructure(config))


def test_the_defaults_of_every_plugin_are_valid() -> None:
    tables = {name: {} for name, spec in INSTALLED.items() if not spec.schemes}
    VALIDATOR.validate(unstructure(structure({"plugins": tables}, INSTALLED)))


def all_settings(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Any:
    """Yield path and schema of every setting that is no table."""
    for name, inner in schema["properties"].items():
        if "properties" in inner:
            yield from all_settings(inner, (*path, name))
        elif inner.get("type") != "object" and name not in {"$schema", "preset", "enabled"}:
            yield (*path, name), inner


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    table: Any = value
    for key in reversed(path):
        table = {key: table}
    result: dict[str, Any] = table
    return result


SETTINGS = dict(all_settings(SCHEMA))
WRONG_TYPES: tuple[Any, ...] = ("x", True, [[]], {"x": 1}, 1.5, None)


@pytest.mark.parametrize("path", SETTINGS, ids=".".join)
def test_what_is_refused_for_its_type_or_range_is_invalid(path: tuple[str, ...]) -> None:
    schema = SETTINGS[path]
    outside = [
        beyond(schema[key])
        for key, beyond in {
            "minimum": lambda bound: bound - max(1, abs(bound) // 2),
            "exclusiveMinimum": lambda bound: bound,
            "maximum": lambda bound: bound + max(1, abs(bound) // 2),
            "exclusiveMaximum": lambda bound: bound,
        }.items()
        if key in schema
    ]
    for value in (*WRONG_TYPES, *outside):
        check(nested(path, value))
    for value in outside:
        assert refusals(nested(path, value))


KEYS = st.sampled_from(sorted({key for path in SETTINGS for key in path} | {"name", "options"}))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda value: value % 1 != 0)
    | st.sampled_from(["auto", "fp16", "builtin:mlp", "builtin:digits", "cuda", "", "linear"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_generated_tables_that_are_refused_for_a_simple_reason_are_invalid(
    table: dict[str, Any],
) -> None:
    check(table)


@given(st.sampled_from([(), *{path[:-1] for path in SETTINGS}]), st.text(min_size=1, max_size=8))
def test_an_unknown_key_is_invalid(path: tuple[str, ...], key: str) -> None:
    table: Any = SCHEMA
    for name in path:
        table = table["properties"][name]
    if key not in table["properties"]:
        assert not VALIDATOR.is_valid(nested((*path, key), 1))
        assert refusals(nested((*path, key), 1))


@pytest.mark.parametrize(
    ("table", "valid"),
    [
        ({"model": {"name": "builtin:byte-gpt", "options": {"layers": 2}}}, True),
        ({"model": {"name": "builtin:byte-gpt", "options": {"layers": 0}}}, False),
        ({"model": {"name": "builtin:byte-gpt", "options": {"inputs": 3}}}, False),
        ({"model": {"name": "builtin:mlp", "options": {"inputs": 3}}}, True),
        ({"model": {"name": "builtin:byte-gtp"}}, False),
        ({"model": {"name": "a.b.c"}}, False),
        ({"model": {"name": ""}}, True),
        ({"model": {"name": "mine:factory", "options": {"anything": 3}}}, True),
        ({"data": {"name": "builtin:text-file", "options": {}}}, False),
        ({"data": {"name": "builtin:text-file", "options": {"path": "a"}}}, True),
        ({"model": {"options": {"anything": 3}}}, True),
        ({"plugins": {"zero": {}}}, False),
        ({"plugins": {"ema": {"enabled": False}}}, True),
        ({"plugins": {"ema": {"enabled": "no"}}}, False),
        ({"plugins": {"mixed-precision": {"preset": "aggressive"}}}, True),
        ({"plugins": {"mixed-precision": {"preset": "agressive"}}}, False),
        ({"train": {"device": "cuda:1"}}, True),
        ({"train": {"device": "mps"}}, True),
        ({"train": {"device": "gpu"}}, False),
        ({"train": {"clip_norm": None}}, True),
        ({"run": {"dir": ""}}, False),
        ({"version": 2}, False),
        ({"$schema": "neaptide.schema.json"}, True),
    ],
)
def test_examples(table: dict[str, Any], valid: bool) -> None:  # noqa: FBT001 - an example's column
    assert valid == VALIDATOR.is_valid(table)


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen(kw_only=True)
class Odd:
    needed: int
    colour: Colour = Colour.RED
    short: str = attrs.field(default="ab", validator=and_(min_len(1), max_len(3)))
    code: str = attrs.field(default="a1", validator=matches_re(r"[a-z]\d|x"))
    few: tuple[int, ...] = attrs.field(default=(1,), validator=max_len(2))
    some: tuple[int, ...] = attrs.field(default=(1,), validator=deep_iterable(gt(0)))
    pair: tuple[int, str] = (1, "a")
    either: int | str | None = attrs.field(default=None, validator=optional(in_([1, "one"])))
    twice: int = attrs.field(default=5, validator=and_(ge(1), ge(3)))
    shares: Mapping[str, float] = attrs.Factory(dict)
    where: Path = Path("a")
    half: float = attrs.field(default=0.5, validator=and_(ge(0), lt(1)))
    top: float | None = attrs.field(default=None, validator=optional(le(1)))
    kind: Literal["a"] | None = None
    free: Any = 0


ODD = Draft202012Validator(class_schema(Odd))


@pytest.mark.parametrize(
    ("table", "valid"),
    [
        ({}, True),
        ({"colour": "red"}, True),
        ({"colour": "blue"}, False),
        ({"short": ""}, False),
        ({"short": "abcd"}, False),
        ({"code": "x"}, True),
        ({"code": "xx"}, False),
        ({"few": [1, 2]}, True),
        ({"few": [1, 2, 3]}, False),
        ({"some": [1, 0]}, False),
        ({"pair": [1, "a"]}, True),
        ({"pair": [1]}, False),
        ({"pair": [1, "a", 2]}, False),
        ({"pair": ["a", 1]}, False),
        ({"either": None}, True),
        ({"either": "one"}, True),
        ({"either": 2}, False),
        ({"twice": 2}, False),
        ({"twice": 0}, False),
        ({"twice": 3}, True),
        ({"shares": {"a": 0.5}}, True),
        ({"shares": {"a": "b"}}, False),
        ({"where": "b"}, True),
        ({"where": 3}, False),
        ({"half": 1}, False),
        ({"top": None}, True),
        ({"top": 2}, False),
        ({"kind": None}, True),
        ({"kind": "b"}, False),
        ({"free": [1, {"a": "b"}]}, True),
    ],
)
def test_types_and_validators_of_strangers(table: dict[str, Any], valid: bool) -> None:  # noqa: FBT001 - as above
    spec = PluginSpec(name="odd", load="strangers:Odd", config=Odd)
    whole = {"needed": 1, **table}
    assert valid == ODD.is_valid(whole)
    if valid:
        structure({"plugins": {"odd": whole}}, {"odd": spec})
    else:
        with pytest.raises(ConfigError):
            structure({"plugins": {"odd": whole}}, {"odd": spec})


def test_a_setting_without_a_default_is_required() -> None:
    with pytest.raises(ValidationError, match="'needed' is a required property"):
        ODD.validate({})


def test_a_setting_may_add_to_its_schema() -> None:
    @attrs.frozen(kw_only=True)
    class Even:
        size: int = field(2, schema={"multipleOf": 2}, help="an even number")

    assert {
        "type": "integer",
        "multipleOf": 2,
        "description": "an even number",
        "default": 2,
    } == class_schema(Even)["properties"]["size"]


def test_a_plugin_that_cannot_be_read_is_left_out_with_the_reason() -> None:
    @attrs.frozen(kw_only=True)
    class Unresolved:
        size: Nowhere = 1  # type: ignore[name-defined]  # noqa: F821 - what a stranger got wrong

    specs = {
        "broken": Installed("broken", "strangers 1.0", "strangers:SPEC", None, "it raised"),
        "unresolved": Installed(
            "unresolved",
            "strangers 1.0",
            "strangers:OTHER",
            PluginSpec(name="unresolved", load="strangers:X", config=Unresolved),
        ),
        "ema": INSTALLED.installed["ema"],
    }
    schema, left_out = json_schema(Registry(specs))
    assert ["ema"] == list(schema["properties"]["plugins"]["properties"])
    assert {
        "broken": "plugin 'broken' from strangers 1.0 cannot be used: it raised",
        "unresolved": (
            "the settings of plugin 'unresolved' raised "
            "NameError(\"name 'Nowhere' is not defined\")"
        ),
    } == left_out
    with pytest.raises(PluginError):
        Registry(specs)["broken"]
