"""The loss scale: torch's own policy, exact arithmetic, and one scale for each update."""

from __future__ import annotations

import math

import attrs
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from neaptide_plugins.mixed_precision.scaling import LARGEST, SMALLEST, LossScale, LossScaler

pytestmark = pytest.mark.usefixtures("on_device")

powers = st.integers(-126, 126).map(lambda exponent: 2.0**exponent)
scales = st.builds(
    LossScale,
    scale=powers,
    growth_factor=st.integers(1, 4).map(lambda exponent: 2.0**exponent),
    backoff_factor=st.integers(1, 4).map(lambda exponent: 2.0**-exponent),
    growth_interval=st.integers(1, 5),
)
outcomes = st.lists(st.booleans(), max_size=30)


def after(scale: LossScale, applied: list[bool]) -> LossScale:
    for each in applied:
        scale = scale.applied() if each else scale.overflowed()
    return scale


@given(scales, outcomes)
def test_the_policy_is_that_of_torchs_grad_scaler(start: LossScale, applied: list[bool]) -> None:
    expected = torch.tensor(start.scale)
    growth = torch.tensor(0, dtype=torch.int32)
    scale = start
    for each in applied:
        # Beyond these bounds torch's scale runs off.
        assume(scale.scale * start.growth_factor <= LARGEST)
        assume(scale.scale * start.backoff_factor >= SMALLEST)
        torch._amp_update_scale_(
            expected,
            growth,
            torch.tensor(0.0 if each else 1.0),
            start.growth_factor,
            start.backoff_factor,
            start.growth_interval,
        )
        scale = after(scale, [each])
        assert (float(expected), int(growth)) == (scale.scale, scale.clean)


@given(scales, outcomes)
def test_it_stays_a_power_of_two_with_a_normal_inverse(
    start: LossScale, applied: list[bool]
) -> None:
    scale = after(start, applied).scale
    assert SMALLEST <= scale <= LARGEST
    assert 0.5 == math.frexp(scale)[0]


@given(st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False), powers)
def test_scaling_and_unscaling_change_no_bit(gradient: float, scale: float) -> None:
    value = torch.tensor(gradient)
    scaled = value * scale
    assume(gradient == 0 or SMALLEST <= float(scaled.abs()) < math.inf)
    assert torch.equal(value, scaled * (1.0 / scale))


def scaler(scale: float = 8.0) -> LossScaler:
    return LossScaler(
        LossScale(scale=scale, growth_factor=2.0, backoff_factor=0.5, growth_interval=1)
    )


@pytest.mark.parametrize(("first", "expected"), [(True, 8.0), (False, 1.0)])
def test_the_first_backward_decides_for_the_whole_update(*, first: bool, expected: float) -> None:
    each = scaler()
    factors = [each.before_backward(wanted=wanted) for wanted in (first, not first, first)]
    assert [expected] * 3 == factors
    each.updated(applied=True)
    assert (16.0 if first else 8.0) == each.current.scale
    assert 1.0 == each.before_backward(wanted=False)


def test_updates_without_the_scale_leave_it_alone() -> None:
    each = scaler()
    before = each.current
    for applied in (True, False):
        each.before_backward(wanted=False)
        each.updated(applied=applied)
    assert before == each.current


@given(start=scales, applied=outcomes, carried=st.sampled_from([None, False, True]))
def test_its_state_is_complete(
    start: LossScale, applied: list[bool], *, carried: bool | None
) -> None:
    saved = LossScaler(after(start, applied), carried)
    loaded = LossScaler(attrs.evolve(start, scale=1.0))
    loaded.load_state_dict(saved.state_dict())
    assert saved == loaded
