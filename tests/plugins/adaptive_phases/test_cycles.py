"""Rewards of cycles: updates saved per update of time, counted and never measured."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neaptide_kernels.encode_state import FEATURES
from neaptide_plugins.adaptive_phases.cycles import (
    CONTEXT,
    SIZE,
    PhaseCycle,
    context_of,
    fall_of,
    loaded,
)
from neaptide_toolkit.predictors.run_features import run_features


def cycle(**changes: Any) -> PhaseCycle:
    plain = PhaseCycle(
        jump=7,
        full=1,
        full_context=[1.0],
        horizon=2,
        horizon_context=[1.0],
        updates=38,
        forwards=4,
        fall=0.01,
    )
    return attrs.evolve(plain, **changes)


def test_a_reward_is_updates_saved_per_update_of_time() -> None:
    assert pytest.approx((10 - 2) / 40) == cycle().reward(0.1, 20)
    assert pytest.approx((20 - 2) / 40) == cycle().reward(9.0, 20)  # at most the horizon
    assert pytest.approx((-10 - 2) / 40) == cycle().reward(-0.1, 20)
    assert pytest.approx(-2 / 40) == cycle(fall=None).reward(0.1, 20)
    assert pytest.approx((20 - 2) / 40) == cycle(fall=-1.0).reward(0.1, 20)
    assert pytest.approx(-2 / 40) == cycle().reward(0.0, 20)  # refused


@given(
    st.floats(allow_nan=True),
    st.integers(1, 1000),
    st.none() | st.floats(-1e9, 1e9),
    st.integers(0, 1000),
)
def test_a_reward_is_finite_and_limited(
    gain: float, horizon: int, fall: float | None, updates: int
) -> None:
    assert -1.0 <= cycle(fall=fall, updates=updates).reward(gain, horizon) <= 1.0


def test_the_fall_of_a_line_is_its_slope() -> None:
    assert pytest.approx(0.25) == fall_of([-0.25 * place for place in range(41)])
    assert fall_of([1.0] * 15) is None
    assert fall_of([math.nan] * 40) is None


def test_a_context_is_a_few_limited_features() -> None:
    losses = [4.0 * 0.99**update for update in range(300)]
    features = run_features(losses, progress=0.25, rate=0.5)
    found = dict(zip(("one", *CONTEXT), context_of(features), strict=True))
    assert (1.0, 0.25, 0.5) == (found["one"], found["progress"], found["learning_rate_share"])
    assert -1.0 <= found["loss_rise_256"] < 0.0
    assert (64, SIZE) == (len(features), len(found))
    assert 0.0 == features[FEATURES.index("seconds_present")]  # no time has a part in it


def test_a_cycle_is_saved_whole() -> None:
    assert cycle(full=None) == loaded(attrs.asdict(cycle(full=None)))
