"""How many trials a comparison trains is known before it trains; so are its tuning seeds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide.config import unstructure
from neaptide.hooks.enabling import configured
from neaptide_verbs.compare.ahead.rehearsal import (
    default_tuning_seeds,
    purpose_of,
    rehearsed,
    updates_of,
)
from neaptide_verbs.compare.protocol import compare
from neaptide_verbs.compare.runs import ComparisonSettings
from neaptide_verbs.compare.sides import Side
from neaptide_verbs.compare.trials import Result, trial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_verbs.compare.trials import TrainingTrial


def sides() -> list[Side]:
    task = {
        "model": {"name": "builtin:mlp"},
        "data": {"name": "builtin:digits"},
        "train": {"steps": 1000},
        "optimizer": {"lr": 1e-3},
    }
    jumping = {**task, "plugins": {"predictor-drift": {}}}
    return [
        Side(name, unstructure(configured(values)[0]))
        for name, values in (("baseline", task), ("candidate", jumping))
    ]


PAIR = sides()


class Losses:
    """Losses by chance, equal for equal trials; counts what is asked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.results: dict[str, Result] = {}

    def train(self, trials: Sequence[TrainingTrial]) -> list[Result]:
        for one in trials:
            loss = math.fmod(hash((self.seed, one.key, one.label[0])) / 1e9, 5.0)
            steps = one.values["train"]["steps"]
            self.results[one.key] = Result(loss, None, steps, 1.0, 0, 0, 0, 0.0, "", 1)
        return [self.results[one.key] for one in trials]


@given(st.integers(0, 2**31), st.integers(1, 3))
def test_the_fewest_and_the_most_trials_bound_every_comparison(seed: int, seeds: int) -> None:
    settings = ComparisonSettings(tuple(range(10, 10 + seeds)), tuning_seeds=(0,))
    fewest, most = (rehearsed(PAIR, settings, kind=kind) for kind in (True, False))
    losses = Losses(seed)
    compare(PAIR, settings, losses.train)
    assert len(fewest.asked) <= len(losses.results) <= len(most.asked)

    # What was trained is not asked for again.
    def kept(asked: TrainingTrial) -> Result | None:
        return losses.results.get(asked.key)

    for kind in (True, False):
        assert {} == rehearsed(PAIR, settings, kind=kind, kept=kept).asked


def test_the_fewest_are_five_rates_a_side_the_baselines_knobs_and_the_reported_runs() -> None:
    settings = ComparisonSettings((10, 11, 12), tuning_seeds=(0,))
    asked = rehearsed(PAIR, settings, kind=True).asked
    reported = [one for one in asked.values() if purpose_of(one)[0] == "reported"]
    tuned = [purpose_of(one)[1] for one in asked.values() if purpose_of(one)[0] == "tuned"]
    assert 5 * 3 == len(reported)
    # Five rates, two initialisations, a warmup and two decays: the schedule is constant.
    assert {"baseline": 5 + 2 + 1 + 2, "candidate": 5} == {
        name: tuned.count(name) for name in ("baseline", "candidate")
    }


@pytest.mark.parametrize(
    ("seeds", "sweeps", "default"),
    [((10, 11, 12, 13, 14), True, (0, 1, 2)), ((10,), True, (0,)), ((0, 1, 2, 9), True, (3, 4, 5))],
)
def test_three_tuning_seeds_where_they_cost_less_than_twice(
    seeds: tuple[int, ...],
    sweeps: bool,  # noqa: FBT001 - a case
    default: tuple[int, ...],
) -> None:
    settings = ComparisonSettings(seeds, sweeps=sweeps)
    assert default == default_tuning_seeds(PAIR, settings)


@given(st.integers(1, 9))
def test_the_rule_is_the_ratio_of_updates(seeds: int) -> None:
    def updates(tuning: tuple[int, ...]) -> int:
        settings = ComparisonSettings(tuple(range(10, 10 + seeds)), tuning_seeds=tuning)
        return updates_of(rehearsed(PAIR, settings, kind=True).asked)

    chosen = default_tuning_seeds(PAIR, ComparisonSettings(tuple(range(10, 10 + seeds))))
    assert (updates((0, 1, 2)) < 2 * updates((0,))) == (len(chosen) == 3)


@pytest.mark.parametrize("name", ["baseline", "candidate-without-jumps"])
def test_a_label_tells_purpose_and_side(name: str) -> None:
    values: dict[str, Any] = dict(PAIR[0].values)
    assert ("reported", name) == purpose_of(trial(f"{name},", values, 1, 1.0, {}))
    assert ("tuned", name) == purpose_of(trial(f"tune {name},", values, 1, 1.0, {}))
    assert ("tuned", name) == purpose_of(trial(f"tune {name} lr 0.1,", values, 1, 1.0, {}))
