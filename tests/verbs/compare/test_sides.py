"""Who is compared: what belongs to prediction leaves by its claims, whatever it is called."""

from __future__ import annotations

from typing import Any

import pytest

from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_verbs.compare.sides import sides_of, without_prediction

DRIFT: dict[str, Any] = {"plugins": {"predictor-drift": {}}}
PLAIN: dict[str, Any] = {"plugins": {}}


def config(*tables: dict[str, Any]) -> Any:
    merged: dict[str, Any] = {"model": {"name": "builtin:mlp"}, "data": {"name": "builtin:digits"}}
    for table in tables:
        merged.update(table)
    return configured(merged)[0]


def names(side: Any) -> set[str]:
    return set(side.values["plugins"])


def test_the_baseline_is_the_same_without_its_predictor() -> None:
    baseline, candidate = sides_of(config(DRIFT), None)
    assert ("baseline", "candidate") == (baseline.name, candidate.name)
    assert {"predictor-drift"} == names(candidate) - names(baseline)
    assert (False, True) == (baseline.predicts, candidate.predicts)
    for section in ("model", "data", "train", "optimizer", "phases"):
        assert baseline.values[section] == candidate.values[section]


def test_who_forecasts_and_who_needs_a_predictor_leaves_with_it() -> None:
    more = {"plugins": {"predictor-drift": {}, "dynamics-linear": {}, "delayed-verdict": {}}}
    phases = {"phases": {"predict": {"confidence": 0.7}}}
    baseline, candidate = sides_of(config(more, phases), None)
    assert set(more["plugins"]) == names(candidate) - names(baseline)
    assert 0.7 == candidate.values["phases"]["predict"]["confidence"]


def test_both_are_evaluated_with_an_average_where_nobody_asked() -> None:
    baseline, candidate = sides_of(config(DRIFT), None)
    assert "ema" in names(baseline) & names(candidate)


def test_two_configurations_have_their_parts_compared_as_well() -> None:
    other = {"optimizer": {"name": "sgd", "lr": 0.1}}
    sides = {side.name: side for side in sides_of(config(DRIFT, other), config(PLAIN))}
    assert ["baseline", "candidate", "candidate-without-jumps", "baseline-with-jumps"] == [*sides]
    assert "sgd" == sides["candidate-without-jumps"].values["optimizer"]["name"]
    assert "adamw" == sides["baseline-with-jumps"].values["optimizer"]["name"]
    assert [False, True, False, True] == [side.predicts for side in sides.values()]


def test_without_a_difference_there_is_nothing_to_compare() -> None:
    with pytest.raises(ConfigError, match="no enabled plugin claims 'predictor'"):
        sides_of(config(PLAIN), None)
    with pytest.raises(ConfigError, match="are the same"):
        sides_of(config(PLAIN), config(PLAIN))


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"name": "builtin:python-stdlib"}},
        {"train": {"steps": 5}},
        {"train": {"batch_size": 2}},
        {"eval": {"batches": 3}},
    ],
)
def test_another_task_is_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="both sides must have the same"):
        sides_of(config(DRIFT), config(PLAIN, other))


def test_what_is_left_is_a_whole_configuration() -> None:
    values = sides_of(config(DRIFT), None)[1].values
    once = without_prediction(values)
    assert once == without_prediction(once)


def test_phases_that_a_side_never_enters_are_no_difference() -> None:
    asked = {"phases": {"full": {"steps": 20}, "predict": {"max_horizon": 400}}}
    sides = sides_of(config(DRIFT, asked), config(PLAIN))
    assert ["baseline", "candidate"] == [side.name for side in sides]


def test_the_same_configuration_is_the_same_side_however_it_came_about() -> None:
    derived, _ = sides_of(config(DRIFT), None)
    given, _ = sides_of(config(DRIFT), config(PLAIN))
    assert derived.values == given.values
