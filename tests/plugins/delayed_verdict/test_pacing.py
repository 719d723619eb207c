from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_plugins.delayed_verdict.config import DelayedVerdictConfig
from neaptide_plugins.delayed_verdict.pacing import (
    REGIMES,
    JumpVerdict,
    Pacing,
    regime_of,
    verdict_of,
)
from neaptide_plugins.lr_schedule.curve import Curve

CONFIG = DelayedVerdictConfig(pause=100)
VERDICTS = st.lists(st.sampled_from(sorted(JumpVerdict, key=lambda each: each.value)), max_size=30)


def after(verdicts: list[JumpVerdict], every: int = 10, start: Pacing | None = None) -> Pacing:
    pacing = start or Pacing()
    for number, verdict in enumerate(verdicts, start=1):
        pacing = pacing.after(verdict, number * every, CONFIG)
    return pacing


@pytest.mark.parametrize(
    ("gain", "expected"),
    [
        (0.3, JumpVerdict.WORTHWHILE),
        (0.2, JumpVerdict.UNCLEAR),
        (0.0, JumpVerdict.UNCLEAR),
        (-0.2, JumpVerdict.UNCLEAR),
        (-0.3, JumpVerdict.HARMFUL),
    ],
)
def test_a_gain_counts_from_so_many_standard_errors(gain: float, expected: JumpVerdict) -> None:
    assert expected is verdict_of(gain, 0.1, 2.0)


def test_no_difference_at_all_is_unclear() -> None:
    assert JumpVerdict.UNCLEAR is verdict_of(0.0, 0.0, 2.0)


@given(VERDICTS)
def test_scale_and_window_stay_within_bounds(verdicts: list[JumpVerdict]) -> None:
    pacing = after(verdicts)
    for each in (pacing.scale, pacing.window):
        assert CONFIG.smallest <= each <= CONFIG.largest


@given(VERDICTS)
def test_what_is_unclear_changes_nothing(verdicts: list[JumpVerdict]) -> None:
    pacing = after(verdicts)
    assert pacing == pacing.after(JumpVerdict.UNCLEAR, 10_000, CONFIG)


def test_worthwhile_jumps_make_bolder_and_harmful_ones_timid() -> None:
    assert 1.25 == after([JumpVerdict.WORTHWHILE]).scale
    assert 2.0 == after([JumpVerdict.WORTHWHILE] * 9).scale
    assert 0.5 == after([JumpVerdict.HARMFUL]).scale
    assert 0.25 == after([JumpVerdict.HARMFUL] * 9).scale
    assert 0.5 == after([JumpVerdict.HARMFUL]).window


def test_harmful_jumps_in_a_row_end_in_a_pause() -> None:
    harmful = [JumpVerdict.HARMFUL]
    assert after(harmful * 2).scale_at(20) > 0.0
    paused = after(harmful * 3)
    assert 0.0 == paused.scale_at(30) == paused.scale_at(129)
    assert 0.25 == paused.scale_at(130)
    again = paused.after(JumpVerdict.HARMFUL, 200, CONFIG)
    assert 0.0 == again.scale_at(299)
    spared = paused.after(JumpVerdict.WORTHWHILE, 200, CONFIG)
    assert 0.0 < spared.after(JumpVerdict.HARMFUL, 300, CONFIG).scale_at(301)


def test_a_worthwhile_jump_in_between_ends_the_row() -> None:
    mixed = [JumpVerdict.HARMFUL, JumpVerdict.HARMFUL, JumpVerdict.WORTHWHILE, JumpVerdict.HARMFUL]
    assert 0.0 < after(mixed).scale_at(41)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (1.0, "high"),
        (0.67, "high"),
        (0.66, "middle"),
        (0.34, "middle"),
        (0.33, "low"),
        (0.0, "low"),
    ],
)
def test_a_regime_is_a_third_of_the_rate(factor: float, expected: str) -> None:
    assert expected == regime_of(factor)


def test_a_linear_schedule_passes_the_regimes_in_order() -> None:
    factor = Curve(name="linear", steps=90).factor
    passed = [regime_of(factor(update)) for update in range(90)]
    assert list(REGIMES) == list(dict.fromkeys(passed))
