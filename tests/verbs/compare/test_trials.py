"""A trial's budget and result: scaled schedules, results kept and found again, and only theirs."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_verbs.compare.trials import Result, TrainingTrial, read_result, trial, write_result

if TYPE_CHECKING:
    from pathlib import Path

VALUES: dict[str, Any] = {
    "seed": 0,
    "train": {"steps": 1000},
    "plugins": {"lr-schedule": {"name": "linear", "warmup": 100}},
    "optimizer": {"lr": 1e-3},
}
RESULT = Result(1.5, 1.4, 1000, 12.5, 3, 1, 60, 0.5, "abc", 1)


@given(st.integers(0, 2**62), st.floats(0.01, 4.0))
def test_the_schedule_ends_with_the_budget(seed: int, fraction: float) -> None:
    found = trial("x", VALUES, seed, fraction, {"optimizer": {"lr": 2e-3}}).values
    assert (seed, {"lr": 2e-3}) == (found["seed"], found["optimizer"])
    assert max(1, round(1000 * fraction)) == found["train"]["steps"]
    assert round(100 * fraction) == found["plugins"]["lr-schedule"]["warmup"]


@pytest.mark.parametrize("schedule", [{"lr-schedule": {"name": "linear", "warmup": 0.1}}, {}])
def test_a_share_of_the_run_stays(schedule: dict[str, Any]) -> None:
    found = trial("x", {**VALUES, "plugins": schedule}, 0, 0.5, {}).values
    assert schedule == found["plugins"]


def test_the_key_is_of_the_settings_not_of_the_label() -> None:
    one, other = TrainingTrial("a", VALUES), TrainingTrial("b", dict(reversed(VALUES.items())))
    assert one.key == other.key
    assert one.key != trial("a", VALUES, 1, 1.0, {}).key


@pytest.mark.parametrize("averaged", [1.4, None, math.inf])
def test_a_result_comes_back(tmp_path: Path, averaged: float | None) -> None:
    result = Result(math.inf, averaged, 1000, 12.5, 3, 1, 60, 0.5, "abc", 1)
    write_result(tmp_path / "a", TrainingTrial("a", VALUES), result)
    assert result == read_result(tmp_path / "a", TrainingTrial("another label", VALUES))


def test_the_result_of_other_settings_is_not_taken(tmp_path: Path) -> None:
    write_result(tmp_path, TrainingTrial("a", VALUES), RESULT)
    assert read_result(tmp_path, TrainingTrial("a", {**VALUES, "seed": 1})) is None


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", '{"values": 1}', '{"loss": 1}'])
def test_a_damaged_result_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    assert read_result(tmp_path, TrainingTrial("a", VALUES)) is None
    assert read_result(tmp_path / "nowhere", TrainingTrial("a", VALUES)) is None


def test_a_result_with_a_key_too_many_is_not_taken(tmp_path: Path) -> None:
    write_result(tmp_path, TrainingTrial("a", VALUES), RESULT)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    assert read_result(tmp_path, TrainingTrial("a", VALUES)) is None


@pytest.mark.parametrize(("loss", "averaged", "best"), [(2.0, None, 2.0), (2.0, 1.0, 1.0)])
def test_the_best_is_the_smaller(loss: float, averaged: float | None, best: float) -> None:
    assert best == Result(loss, averaged, 1, 1.0, 0, 0, 0, 0.0, "", 1).best


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("loss", None),
        ("loss", "much"),
        ("averaged", "nan"),
        ("updates", True),
        ("seconds", [1]),
        ("updates", -5),
        ("updates", 0),
        ("seconds", -1.0),
    ],
)
def test_a_damaged_figure_is_no_result(tmp_path: Path, figure: str, value: Any) -> None:
    known = TrainingTrial("x", VALUES)
    write_result(tmp_path, known, RESULT)
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), figure: value}))
    assert None is read_result(tmp_path, known)
