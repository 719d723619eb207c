"""What holds of every configuration, and of everything that is none."""

from __future__ import annotations

import json
from collections.abc import Mapping  # noqa: TC003 - read from the classes below
from pathlib import Path
from typing import Any, Literal

import attrs
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config import RunConfig, dumps, load, loads, structure, unstructure
from neaptide.config.schema import (
    CorrectSection,
    DataSection,
    EvalSection,
    FullSection,
    ModelSection,
    OptimizerSection,
    PhasesSection,
    PredictSection,
    RunSection,
    ScheduleSection,
    TrainSection,
    WarmupSection,
)
from neaptide.errors import ConfigError
from neaptide.plugin import PluginSpec


@attrs.frozen(kw_only=True)
class Inner:
    size: int = 1
    note: str | None = None


@attrs.frozen(kw_only=True)
class Rich:
    flag: bool = True
    rate: float = 0.5
    either: int | float | str = 0
    choice: Literal["a", "b", 3] = "a"
    limit: float | None = None
    sizes: tuple[int, ...] = ()
    names: frozenset[str] = frozenset()
    inner: Inner = Inner()
    inners: list[Inner] = attrs.Factory(list)
    table: Mapping[str, Any] = attrs.Factory(dict)
    path: Path = Path("x")


SPECS = {
    name: PluginSpec(name=name, load="strangers:Rich", config=Rich) for name in ("rich", "rich-er")
}

int64 = st.integers(-(2**63), 2**63 - 1)
counts = st.integers(1, 2**63 - 1)
floats = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(0, exclude_min=True, allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8)
plain = st.recursive(
    st.booleans() | int64 | floats | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
tables = st.dictionaries(text, plain, max_size=3)

inners = st.builds(Inner, size=int64, note=st.none() | text)
plugins = st.builds(
    Rich,
    flag=st.booleans(),
    rate=floats,
    either=int64 | floats | text,
    choice=st.sampled_from(["a", "b", 3]),
    limit=st.none() | floats,
    sizes=st.lists(int64, max_size=3).map(tuple),
    names=st.frozensets(text, max_size=3),
    inner=inners,
    inners=st.lists(inners, max_size=3),
    table=tables,
    path=text.map(Path),
)
built = st.just("") | text.map("module:{}x".format)
configs = st.builds(
    RunConfig,
    seed=st.integers(0, 2**63 - 1),
    run=st.builds(
        RunSection,
        dir=st.none() | text.filter(bool),
        keep=counts,
        progress=st.sampled_from(["auto", "plain", "quiet"]),
    ),
    model=st.builds(ModelSection, name=built, options=tables),
    data=st.builds(DataSection, name=built, options=tables),
    train=st.builds(
        TrainSection,
        steps=counts,
        batch_size=counts,
        device=st.sampled_from(["auto", "cpu", "cuda", "cuda:3"]),
        clip_norm=st.none() | positive,
        grad_norm=st.booleans(),
    ),
    optimizer=st.builds(OptimizerSection, name=text, lr=positive, options=tables),
    schedule=st.builds(
        ScheduleSection,
        name=st.sampled_from(["constant", "linear", "cosine"]),
        warmup_steps=counts,
    ),
    eval=st.builds(EvalSection, every=counts, batches=counts),
    phases=st.builds(
        PhasesSection,
        warmup=st.builds(WarmupSection, steps=counts),
        full=st.builds(FullSection, steps=counts),
        predict=st.builds(
            PredictSection,
            max_horizon=counts,
            confidence=st.none() | st.floats(0, 1, exclude_min=True),
            rise=st.floats(0, 1),
        ),
        correct=st.builds(CorrectSection, steps=counts),
    ),
    plugins=st.dictionaries(st.sampled_from(sorted(SPECS)), plugins),
)


@given(configs)
def test_a_configuration_comes_back_from_toml_bit_for_bit(config: RunConfig) -> None:
    table = unstructure(config)
    written = dumps(table)
    again = structure(loads(written), SPECS)
    assert again == config
    assert list(again.plugins) == list(config.plugins)
    # JSON tells 1 from 1.0 from true, and 0.0 from -0.0, which `==` does not.
    assert json.dumps(unstructure(again), sort_keys=True) == json.dumps(table, sort_keys=True)
    assert dumps(unstructure(again)) == written


known = st.sampled_from(
    [
        *(option.name for option in attrs.fields(RunConfig)),
        *(option.name for option in attrs.fields(TrainSection)),
        *(option.name for option in attrs.fields(PhasesSection)),
        *(option.name for option in attrs.fields(Rich)),
        *("enabled", "preset", *SPECS),
    ]
)
junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=2)
    | st.dates()
    | st.sampled_from([2**63, -0.0, float("inf"), "nan", "\0", object(), {1, 2}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(known | st.text(max_size=3) | st.integers(), inner, max_size=4)
    ),
    max_leaves=12,
)


def check_lines(error: ConfigError) -> None:
    assert error.problems
    assert [problem for problem in error.problems if len(problem.splitlines()) != 1] == []


@given(junk | st.dictionaries(known, st.dictionaries(known, junk, max_size=4), max_size=5))
def test_anything_is_a_configuration_or_a_typed_error_of_single_lines(data: Any) -> None:
    try:
        config = structure(data, SPECS)
    except ConfigError as error:
        check_lines(error)
    else:
        assert structure(loads(dumps(unstructure(config))), SPECS) == config


words = st.text(st.characters(exclude_categories=()), max_size=12)


@given(
    st.lists(words | st.tuples(known, words).map("=".join), max_size=3),
    st.dictionaries(words.map("NEAPTIDE__{}".format), words, max_size=3),
)
def test_any_setting_and_variable_is_taken_or_refused(
    sets: list[str], environ: dict[str, str]
) -> None:
    try:
        load(sets=sets, environ=environ, specs=SPECS)
    except ConfigError as error:
        check_lines(error)
