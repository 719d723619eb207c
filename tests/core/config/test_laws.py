"""What holds of every configuration, and of everything that is none."""

from __future__ import annotations

import json
from typing import Any

import attrs
from config_strategies import SPECS, Rich, configs
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config import RunConfig, dumps, load, loads, structure, unstructure
from neaptide.config.schema import (
    PhasesSection,
    TrainSection,
)
from neaptide.errors import ConfigError


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
