from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence  # noqa: TC003 - read from the classes below
from pathlib import Path
from typing import Annotated, Any, Literal, NewType

import attrs
import pytest
from attrs.validators import ge, gt, instance_of, matches_re

from neaptide.config import RunConfig, structure, unstructure
from neaptide.config.schema import EvalSection, ModelSection, OptimizerSection, TrainSection
from neaptide.errors import ConfigError
from neaptide.plugin import PluginSpec


def problems(data: Any, specs: Mapping[str, PluginSpec], **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        structure(data, specs, **options)
    return list(caught.value.problems)


def test_an_empty_table_is_the_defaults(specs: dict[str, PluginSpec]) -> None:
    assert structure({}, specs) == RunConfig()


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({"train": {"steps": "3"}}, 'expected an integer (got "3", a string) @ train.steps'),
        ({"train": {"steps": 1.9}}, "expected an integer (got 1.9, a float) @ train.steps"),
        ({"train": {"steps": 3.0}}, "expected an integer (got 3.0, a float) @ train.steps"),
        ({"train": {"steps": True}}, "expected an integer (got true, a boolean) @ train.steps"),
        ({"train": {"steps": []}}, "expected an integer (got an array) @ train.steps"),
        ({"train": {"steps": {}}}, "expected an integer (got a table) @ train.steps"),
        (
            {"train": {"steps": object()}},
            "expected an integer (got an object of type object) @ train.steps",
        ),
        (
            {"train": {"steps": 2**63}},
            "expected an integer of at most 64 bits (got one of 64 bits) @ train.steps",
        ),
        (
            {"seed": 16**5000},
            "expected an integer of at most 64 bits (got one of 20001 bits) @ seed",
        ),
        ({"train": {"steps": 0}}, "'steps' must be >= 1 (got 0) @ train.steps"),
        (
            {"train": {"grad_norm": "false"}},
            'expected true or false (got "false", a string) @ train.grad_norm',
        ),
        (
            {"train": {"grad_norm": 0}},
            "expected true or false (got 0, an integer) @ train.grad_norm",
        ),
        (
            {"train": {"device": "gpu"}},
            "'device' must be auto, cpu, cuda[:N], xpu[:N] or mps (got 'gpu') @ train.device",
        ),
        (
            {"train": {"clip_norm": "a"}},
            'expected a number (got "a", a string) @ train.clip_norm',
        ),
        ({"optimizer": {"lr": True}}, "expected a number (got true, a boolean) @ optimizer.lr"),
        (
            {"optimizer": {"lr": float("nan")}},
            "expected a finite number (got nan) @ optimizer.lr",
        ),
        (
            {"optimizer": {"lr": float("inf")}},
            "expected a finite number (got inf) @ optimizer.lr",
        ),
        ({"optimizer": {"lr": 0}}, "'lr' must be > 0 (got 0.0) @ optimizer.lr"),
        (
            {"optimizer": {"lr": 2**53 + 1}},
            (
                "expected a number that a float can hold (got 9007199254740993, an integer)"
                " @ optimizer.lr"
            ),
        ),
        (
            {"optimizer": {"lr": None}},
            "null is not allowed; leave the key out for its default @ optimizer.lr",
        ),
        (
            {"run": {"log": "jsn"}},
            (
                'expected one of "console", "json" (got "jsn", a string) (did you mean \'json\'?)'
                " @ run.log"
            ),
        ),
        (
            {"run": {"log": 1}},
            'expected one of "console", "json" (got 1, an integer) @ run.log',
        ),
        ({"run": {"dir": 3}}, "expected a string (got 3, an integer) @ run.dir"),
        (
            {"run": {"dir": "a\0b"}},
            r'a string must not hold the NUL character (got "a\u0000b") @ run.dir',
        ),
        (
            {"run": {"dir": "a\udc80"}},
            r'a string must be valid Unicode (got "a\udc80") @ run.dir',
        ),
        ({"run": {"dir": ""}}, "'dir' must be a path (got '') @ run.dir"),
        ({"train": 3}, "expected a table (got 3, an integer) @ train"),
        ({"train": None}, "expected a table (got None); write {} for an empty one @ train"),
        ({"plugins": None}, "expected a table (got None); write {} for an empty one @ plugins"),
        (
            {"plugins": {"ema": None}},
            "expected a table (got None); write {} for an empty one @ plugins.ema",
        ),
        (
            {"train": {"stpes": 3}},
            "unknown key 'stpes' (did you mean 'steps'?) @ train.stpes",
        ),
        (
            {"eval": {"q": 3}},
            "unknown key 'q' (known: every, batches) @ eval.q",
        ),
        ({"eval": {3: 4}}, "expected a string as the key (got 3, an integer) @ eval"),
        (
            {"preset": "tiny-cpu"},
            (
                "unknown key 'preset' (known: version, seed, plugins_from, run, model, data, train,"
                " optimizer, eval, phases, plugins) @ preset"
            ),
        ),
        (
            {"model": {"options": {"a b": [1, float("inf")]}}},
            'expected a finite number (got inf) @ model.options."a b"[1]',
        ),
        (
            {"model": {"options": {"size": None}}},
            (
                "expected a string, a number, a boolean, an array or a table (got None)"
                " @ model.options.size"
            ),
        ),
        (
            {"version": 2, "unheard-of": 1},
            "version 2 is not one this Neaptide reads (it reads 1) @ version",
        ),
        ({"version": True}, "expected an integer (got true, a boolean) @ version"),
        (
            {"plugins": {"emaa": {}}},
            "plugin 'emaa' is not installed (did you mean 'ema'?) @ plugins.emaa",
        ),
        (
            {"plugins": {"zero": {}}},
            (
                "plugin 'zero' is not installed (installed: ema, int8, layer-drop, models)"
                " @ plugins.zero"
            ),
        ),
        ({"plugins": []}, "expected a table (got an array) @ plugins"),
        ({"plugins": {"ema": True}}, "expected a table (got true, a boolean) @ plugins.ema"),
        (
            {"plugins": {"int8": {"bits": 5}}},
            "'bits' must be in [4, 8] (got 5) @ plugins.int8.bits",
        ),
        (
            {"plugins": {"ema": {"lerning_rate": 1}}},
            "unknown key 'lerning_rate' (did you mean 'learning_rate'?) @ plugins.ema.lerning_rate",
        ),
        ({"plugins": {"layer-drop": {"x": 1}}}, "unknown key 'x' @ plugins.layer-drop.x"),
        (
            {"plugins": {"ema": {"enabled": "no"}}},
            'expected true or false (got "no", a string) @ plugins.ema.enabled',
        ),
        (
            {"plugins": {"ema": {"preset": "fats"}}},
            "unknown preset 'fats' (known: fast, slow) @ plugins.ema.preset",
        ),
        (
            {"plugins": {"int8": {"preset": "fast"}}},
            "unknown preset 'fast' (int8 has none) @ plugins.int8.preset",
        ),
        ([1, 2], "expected a table (got an array)"),
    ],
)
def test_a_problem_is_one_line_with_the_value_the_path_and_the_way_out(
    data: Any, line: str, specs: dict[str, PluginSpec]
) -> None:
    assert problems(data, specs) == [line]


@pytest.mark.parametrize(
    ("section", "instead"),
    [
        (
            {"name": "linear", "warmup_steps": 40},
            'write [plugins.lr-schedule] with name = "linear", warmup = 40, count_jumps = false',
        ),
        (
            {"warmup_steps": 3},
            'write [plugins.lr-schedule] with name = "constant", warmup = 3, count_jumps = false',
        ),
        (
            {"name": "cosine", "wramup": 3},
            'write [plugins.lr-schedule] with name = "cosine", warmup = 0, count_jumps = false',
        ),
        ({"name": "constant", "warmup_steps": 0}, "delete it, it sets nothing"),
        ({}, "delete it, it sets nothing"),
        (None, "delete it, it sets nothing"),
    ],
    ids=str,
)
def test_a_section_of_old_names_the_lines_that_stand_for_it(
    section: Any, instead: str, specs: dict[str, PluginSpec]
) -> None:
    lines = problems({"train": {"steps": 5}, "schedule": section}, specs)
    assert [f"[schedule] is not a section since 0.1: {instead} @ schedule"] == lines


def test_all_problems_are_reported_at_once(specs: dict[str, PluginSpec]) -> None:
    data = {
        "sede": 1,
        "train": {"batch_size": 0, "device": "gpu", "steps": "3"},
        "plugins": {"int8": {"bits": 5}, "emaa": {}, "ema": {"preset": "x", "every": 1.5}},
    }
    assert problems(data, specs) == [
        "unknown key 'sede' (did you mean 'seed'?) @ sede",
        'expected an integer (got "3", a string) @ train.steps',
        "'batch_size' must be >= 1 (got 0) @ train.batch_size",
        "'device' must be auto, cpu, cuda[:N], xpu[:N] or mps (got 'gpu') @ train.device",
        "'bits' must be in [4, 8] (got 5) @ plugins.int8.bits",
        "plugin 'emaa' is not installed (did you mean 'ema'?) @ plugins.emaa",
        "unknown preset 'x' (known: fast, slow) @ plugins.ema.preset",
        "expected an integer (got 1.5, a float) @ plugins.ema.every",
    ]


def test_problems_name_where_the_value_came_from(specs: dict[str, PluginSpec]) -> None:
    data = {
        "train": {"steps": "x"},
        "model": {"options": {"a": [None]}},
        "plugins": {"q": {"b": 1}},
    }
    origins = {"train.steps": "a.toml", "model.options.a": "b.toml", "plugins.q.b": "c.toml"}
    lines = problems(data, specs, origins=origins)
    assert [line.rpartition(" (from ")[2] for line in lines] == ["a.toml)", "b.toml)", "c.toml)"]


@pytest.mark.parametrize("closing", [{}, {"itself": None}])
def test_nesting_has_a_limit(closing: dict[str, Any], specs: dict[str, PluginSpec]) -> None:
    table: dict[str, Any] = closing
    for _ in range(5000):
        table = {"a": table}
    closing.update({"itself": table} if closing else {})
    data = {"model": {"options": table}}
    assert problems(data, specs) == ["tables and arrays may nest at most 50 deep"]


def test_forty_eight_tables_inside_the_options_are_not_too_deep(
    specs: dict[str, PluginSpec],
) -> None:
    table: dict[str, Any] = {}
    for _ in range(47):
        table = {"a": table}
    config = structure({"model": {"options": table}}, specs)
    assert config.model.options == table
    assert problems({"model": {"options": {"a": table}}}, specs) == [
        "tables and arrays may nest at most 50 deep"
    ]


def test_plugins_keep_the_order_of_the_configuration(specs: dict[str, PluginSpec]) -> None:
    config = structure({"plugins": {"layer-drop": {}, "ema": {}, "int8": {}}}, specs)
    assert list(config.plugins) == ["layer-drop", "ema", "int8"]
    assert list(unstructure(config)["plugins"]) == ["layer-drop", "ema", "int8"]


def test_a_disabled_plugin_is_left_out_but_its_table_is_still_checked(
    specs: dict[str, PluginSpec],
) -> None:
    assert structure({"plugins": {"ema": {"enabled": False, "every": 2}}}, specs).plugins == {}
    assert problems({"plugins": {"ema": {"enabled": False, "evry": 2}}}, specs) == [
        "unknown key 'evry' (did you mean 'every'?) @ plugins.ema.evry"
    ]


def test_a_blocked_plugin_is_left_out_without_being_looked_at(specs: dict[str, PluginSpec]) -> None:
    data = {"plugins": {"broken": {"x": 1}, "ema": {}}}
    config = structure(data, specs, disabled=frozenset({"broken"}))
    assert list(config.plugins) == ["ema"]


def test_a_plugins_preset_lies_under_its_explicit_keys(specs: dict[str, PluginSpec]) -> None:
    config = structure({"plugins": {"ema": {"preset": "fast", "every": 7}}}, specs)
    ema = specs["ema"].config
    assert config.plugins == {"ema": ema(decay=0.9, every=7)}
    assert unstructure(config)["plugins"]["ema"] == {
        "decay": 0.9,
        "learning_rate": 1.0,
        "every": 7,
    }


def test_all_installed_plugins_run_on_request(specs: dict[str, PluginSpec]) -> None:
    data = {
        "plugins_from": "installed",
        "plugins": {"int8": {"bits": 4}, "ema": {"enabled": False}},
    }
    config = structure(data, specs)
    assert config.plugins == {
        "int8": specs["int8"].config(bits=4),
        "layer-drop": specs["layer-drop"].config(),
    }
    # What was resolved once stays as it is, whatever is installed where it is read again.
    assert config.plugins_from == "listed"
    blocked = structure(data, specs, disabled=frozenset({"layer-drop"}))
    assert list(blocked.plugins) == ["int8"]


def test_a_builder_runs_where_it_is_listed(specs: dict[str, PluginSpec]) -> None:
    data = {"plugins_from": "installed", "plugins": {"models": {}}}
    assert "models" in structure(data, specs).plugins


class Shade(enum.Enum):
    DARK = "dark"


class Level(enum.IntEnum):
    HIGH = 3


class Word(enum.StrEnum):
    YES = "yes"


Bytes = NewType("Bytes", int)


@attrs.frozen(kw_only=True)
class Inner:
    size: int = attrs.field(default=1, validator=ge(1))


@attrs.frozen(kw_only=True)
class Rich:
    number: float | int = 0.0
    either: int | str = 0
    choice: Literal["a", 1] | None = None
    pair: tuple[int, str] = (0, "")
    many: tuple[float, ...] = ()
    names: frozenset[str] = frozenset()
    plain_list: list[int] = attrs.Factory(list)
    sequence: Sequence[bool] = ()
    inner: Inner = Inner()
    inners: tuple[Inner, ...] = ()
    by_name: Mapping[str, Inner] = attrs.Factory(dict)
    whatever: Any = 0
    path: Path = Path()
    shade: Shade = Shade.DARK
    level: Level = Level.HIGH
    word: Word = Word.YES
    budget: Bytes = Bytes(0)
    noted: Annotated[int, "bytes"] = 0
    short: int | None = 5
    _hidden: int = 0


RICH = {"rich": PluginSpec(name="rich", load="strangers:Rich", config=Rich)}


def rich(**values: Any) -> Rich:
    return structure({"plugins": {"rich": values}}, RICH).plugins["rich"]


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("number", 3, 3),
        ("number", 3.0, 3.0),
        ("either", "3", "3"),
        ("choice", 1, 1),
        ("choice", "a", "a"),
        ("choice", None, None),
        ("pair", [1, "x"], (1, "x")),
        ("many", [1, 2.5], (1.0, 2.5)),
        ("names", ["b", "a"], frozenset({"a", "b"})),
        ("names", {"a"}, frozenset({"a"})),
        ("plain_list", [3], [3]),
        ("sequence", [True], (True,)),
        ("inner", {"size": 2}, Inner(size=2)),
        ("inners", [{"size": 2}, {}], (Inner(size=2), Inner())),
        ("by_name", {"x y": {"size": 2}}, {"x y": Inner(size=2)}),
        ("whatever", [1, {"a": (2,)}], [1, {"a": [2]}]),
        ("path", "runs/x", Path("runs/x")),
        ("shade", "dark", Shade.DARK),
        ("level", 3, Level.HIGH),
        ("level", Level.HIGH, Level.HIGH),
        ("word", "yes", Word.YES),
        ("budget", 7, 7),
        ("noted", 7, 7),
    ],
)
def test_types_of_plugin_settings(name: str, given: Any, expected: Any) -> None:
    found = getattr(rich(**{name: given}), name)
    assert found == expected
    assert type(found) is type(expected)
    again = unstructure(structure({"plugins": {"rich": {name: given}}}, RICH))
    assert getattr(structure(again, RICH).plugins["rich"], name) == expected


def test_a_setting_without_a_type_takes_any_plain_value() -> None:
    @attrs.frozen(kw_only=True)
    class Untyped:
        size = attrs.field(default=0)

    specs = {"untyped": PluginSpec(name="untyped", load="strangers:Untyped", config=Untyped)}
    config = structure({"plugins": {"untyped": {"size": [1, "a"]}}}, specs)
    assert config.plugins["untyped"].size == [1, "a"]


def test_private_fields_are_set_by_their_public_name() -> None:
    assert rich(hidden=3) == Rich(hidden=3)


@pytest.mark.parametrize(
    ("name", "given", "line"),
    [
        (
            "number",
            "x",
            'expected a number or an integer (got "x", a string) @ plugins.rich.number',
        ),
        ("either", 1.5, "expected an integer or a string (got 1.5, a float) @ plugins.rich.either"),
        (
            "choice",
            True,
            'expected one of "a", 1 (got true, a boolean) @ plugins.rich.choice',
        ),
        ("pair", [1], "expected an array of 2 values (got 1) @ plugins.rich.pair"),
        (
            "pair",
            [1, 2],
            "expected a string (got 2, an integer) @ plugins.rich.pair[1]",
        ),
        ("many", "ab", 'expected an array (got "ab", a string) @ plugins.rich.many'),
        ("many", [1, "x"], 'expected a number (got "x", a string) @ plugins.rich.many[1]'),
        (
            "plain_list",
            {1},
            "expected an array (got an object of type set) @ plugins.rich.plain_list",
        ),
        ("inner", {"size": 0}, "'size' must be >= 1 (got 0) @ plugins.rich.inner.size"),
        ("inners", [{}, {"size": 0}], "'size' must be >= 1 (got 0) @ plugins.rich.inners[1].size"),
        (
            "by_name",
            {"x y": 3},
            'expected a table (got 3, an integer) @ plugins.rich.by_name."x y"',
        ),
        ("path", 3, "expected a path (got 3, an integer) @ plugins.rich.path"),
        (
            "path",
            "a\0",
            r'a string must not hold the NUL character (got "a\u0000") @ plugins.rich.path',
        ),
        ("shade", "light", "'light' is not a valid Shade @ plugins.rich.shade"),
        ("level", 4, "4 is not a valid Level @ plugins.rich.level"),
        (
            "short",
            None,
            "null is not allowed; leave the key out for its default @ plugins.rich.short",
        ),
    ],
)
def test_wrong_types_in_plugin_settings(name: str, given: Any, line: str) -> None:
    assert problems({"plugins": {"rich": {name: given}}}, RICH) == [line]


def even(_: object, __: object, value: int) -> None:
    if value % 2:
        msg = "must be\n  even"
        raise ValueError(msg)


@attrs.frozen(kw_only=True)
class Limits:
    low: int = attrs.field(default=0, validator=even)
    high: int = attrs.field(default=10, validator=gt(0))
    name: str = attrs.field(default="x", validator=matches_re("[a-z]+"))
    text: Any = attrs.field(default="", validator=instance_of(str))

    def __attrs_post_init__(self) -> None:
        if self.low > self.high:
            msg = f"low ({self.low}) must not exceed high ({self.high})"
            raise ValueError(msg)


LIMITS = {"limits": PluginSpec(name="limits", load="strangers:Limits", config=Limits)}


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ({"low": 3}, ["'low': must be even (got 3) @ plugins.limits.low"]),
        (
            {"low": 12},
            ["low (12) must not exceed high (10) @ plugins.limits"],
        ),
        (
            {"low": 3, "high": 0, "name": "A"},
            [
                "'low': must be even (got 3) @ plugins.limits.low",
                "'high' must be > 0 (got 0) @ plugins.limits.high",
                "'name' must match regex '[a-z]+' ('A' doesn't) (got \"A\") @ plugins.limits.name",
            ],
        ),
        (
            {"text": 4},
            ["'text' must be <class 'str'> (got 4 that is a <class 'int'>) @ plugins.limits.text"],
        ),
    ],
)
def test_what_validators_say_becomes_one_line_each(
    values: dict[str, Any], lines: list[str]
) -> None:
    assert problems({"plugins": {"limits": values}}, LIMITS) == lines


@attrs.frozen(kw_only=True)
class Broken:
    size: int = attrs.field(default=1)

    @size.validator
    def _check(self, _: object, value: int) -> None:
        if value == 2:
            raise ZeroDivisionError


def test_a_bug_in_a_plugins_validator_names_the_plugin() -> None:
    specs = {"broken": PluginSpec(name="broken", load="strangers:Broken", config=Broken)}
    with pytest.raises(ZeroDivisionError) as caught:
        structure({"plugins": {"broken": {"size": 2}}}, specs)
    assert caught.value.__notes__ == ["while checking the settings of plugin 'broken'"]


def test_unstructure_leaves_none_out_and_sorts_sets() -> None:
    plugin = Rich(names=frozenset({"b", "a"}), short=4)
    table = unstructure(RunConfig(plugins={"rich": plugin}))
    assert "dir" not in table["run"]
    assert table["plugins"]["rich"]["names"] == ["a", "b"]


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (
            RunConfig(model=ModelSection(options={"a": [float("nan")]})),
            "expected a finite number (got nan) @ model.options.a[0]",
        ),
        (
            RunConfig(plugins={"rich": Rich(short=None)}),
            (
                "expected a string, a number, a boolean, an array or a table (got None)"
                " @ plugins.rich.short"
            ),
        ),
    ],
)
def test_a_configuration_built_by_hand_must_be_writable(config: RunConfig, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        unstructure(config)
    assert caught.value.problems == (line,)


def test_sections_stay_in_the_order_of_the_schema() -> None:
    table = unstructure(
        RunConfig(eval=EvalSection(), optimizer=OptimizerSection(), train=TrainSection(), seed=3)
    )
    assert list(table) == [option.name for option in attrs.fields(RunConfig)]


@attrs.frozen(kw_only=True)
class Demanding:
    path: str
    size: int = attrs.field(default=1, validator=ge(1))
    pair: int = attrs.field(default=1)

    @pair.validator
    def _pair(self, _attribute: object, value: int) -> None:
        if len(self.path) + value > 9:
            msg = f"'pair' is too large for the path (got {value})"
            raise ValueError(msg)


@pytest.mark.parametrize(
    ("table", "lines"),
    [
        ({}, ["'path' must be given; it has no default @ plugins.demanding"]),
        (
            {"size": 0, "pair": 2, "pth": "a"},
            [
                "unknown key 'pth' (did you mean 'path'?) @ plugins.demanding.pth",
                "'path' must be given; it has no default @ plugins.demanding",
                "'size' must be >= 1 (got 0) @ plugins.demanding.size",
            ],
        ),
        (
            {"path": 3, "size": 0},
            [
                "expected a string (got 3, an integer) @ plugins.demanding.path",
                "'size' must be >= 1 (got 0) @ plugins.demanding.size",
            ],
        ),
        (
            {"path": "a", "size": 0, "pair": 9},
            [
                "'size' must be >= 1 (got 0) @ plugins.demanding.size",
                "'pair' is too large for the path (got 9) @ plugins.demanding.pair",
            ],
        ),
    ],
)
def test_settings_without_a_default_are_asked_for_beside_all_else(
    table: dict[str, Any], lines: list[str]
) -> None:
    spec = PluginSpec(name="demanding", load="strangers:Demanding", config=Demanding)
    assert lines == problems({"plugins": {"demanding": table}}, {"demanding": spec})
