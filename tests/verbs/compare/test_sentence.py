"""The first sentence of a comparison says what was saved, and nothing that is not shown."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_verbs.compare.shown.sentence import sentence


def multiplier(
    mean: float,
    low: float | None = None,
    high: float | None = None,
    outside: str | None = None,
) -> dict[str, Any]:
    return {
        "mean": mean,
        "low": low,
        "high": high,
        "least": 0.71,
        "most": 1.41,
        "outside": outside,
        "per_seed": {},
    }


def side(passes: dict[str, Any], time: dict[str, Any], jumps: int = 3) -> dict[str, Any]:
    judged = {"mean_loss": 1.0, "multiplier": passes, "time_multiplier": time}
    at = {"fraction": 1.0, "jumps": jumps, "plain": judged, "averaged": None}
    return {"predicts": True, "budgets": [at]}


def found(*others: tuple[str, dict[str, Any]], tuned: bool = True) -> dict[str, Any]:
    baseline = {**side(multiplier(1.0), multiplier(1.0)), "predicts": False}
    return {"sides": {"baseline": baseline, **dict(others)}, "baseline_is_tuned": tuned}


NAN = math.nan
UNKNOWN = multiplier(NAN) | {"least": NAN, "most": NAN}


@pytest.mark.parametrize(
    ("passes", "time", "said"),
    [
        (
            multiplier(1.1, 1.03, 1.19),
            multiplier(1.05, 1.01, 1.1),
            "Jumps saved 9 % of backward passes (3 to 16 %) on this task; in time 5 %.",
        ),
        (
            multiplier(1.037, 1.01, 1.06),
            multiplier(0.95, 0.93, 0.97),
            "Jumps saved 4 % of backward passes (1.0 to 6 %) on this task; in time a loss of 5 %.",
        ),
        (
            multiplier(1.02, 0.97, 1.07),
            multiplier(0.95, 0.91, 1.01),
            (
                "Jumps: no saving of backward passes is shown on this task, for the interval "
                "holds 0: 2 % (-3 to 7 %); in time no saving is shown: -5 % (-10 to 1.0 %)."
            ),
        ),
        (
            multiplier(0.9, 0.85, 0.95),
            UNKNOWN,
            (
                "Jumps cost 11 % more backward passes (5 to 18 %) on this task; the times cannot "
                "be compared."
            ),
        ),
        (
            multiplier(1.3, 1.2, math.inf),
            UNKNOWN,
            (
                "Jumps saved 23 % of backward passes (17 to more than 29 %) on this task; the "
                "times cannot be compared."
            ),
        ),
        (
            multiplier(1.1),
            UNKNOWN,
            (
                "Jumps saved 9 % of backward passes (one seed, no interval) on this task; the "
                "times cannot be compared."
            ),
        ),
        (
            multiplier(NAN, 0.0, 0.8, "below"),
            UNKNOWN,
            (
                "Jumps saved nothing on this task: the loss is worse than the baseline's with 0.71 "
                "times the passes."
            ),
        ),
        (
            multiplier(NAN, 1.3, math.inf, "above"),
            multiplier(NAN, 1.3, math.inf) | {"most": 1.25},
            "Jumps saved more than 29 % of backward passes on this task; in time more than 20 %.",
        ),
        (
            multiplier(NAN, outside="diverged"),
            UNKNOWN,
            "Jumps: no saving can be stated, because it diverged.",
        ),
    ],
)
def test_what_is_said(passes: dict[str, Any], time: dict[str, Any], said: str) -> None:
    assert said == sentence(found(("candidate", side(passes, time))))


def test_without_a_jump_nothing_is_told() -> None:
    none = side(multiplier(1.0, 1.0, 1.0), UNKNOWN, jumps=0)
    assert "Jumps: not one jump was made on this task, so there is nothing to tell." == sentence(
        found(("candidate", none))
    )


def test_other_differences_are_not_ascribed_to_jumps() -> None:
    whole = side(multiplier(1.5, 1.4, 1.6), UNKNOWN)
    jumps = side(multiplier(1.02, 0.97, 1.07), UNKNOWN)
    said = sentence(
        found(
            ("candidate", whole), ("candidate-without-jumps", whole), ("baseline-with-jumps", jumps)
        )
    )
    assert said.startswith("The candidate saved 33 % of backward passes (29 to 38 %) on this task;")
    assert ". Jumps alone: no saving of backward passes is shown on this task" in said


def test_an_untuned_baseline_is_named() -> None:
    gain = side(multiplier(1.1, 1.03, 1.19), UNKNOWN)
    assert sentence(found(("candidate", gain), tuned=False)).endswith("The baseline is not tuned.")


@given(st.floats(0.72, 1.4), st.floats(0.0, 0.3), st.floats(0.0, 0.3))
def test_a_saving_is_stated_only_if_the_interval_is_above_zero(
    mean: float, down: float, up: float
) -> None:
    worth = multiplier(mean, mean - down, mean + up)
    said = sentence(found(("candidate", side(worth, UNKNOWN))))
    assert said.startswith("Jumps saved ") == (mean - down > 1.0)
    assert said.startswith("Jumps cost ") == (mean + up < 1.0)
