"""The grid of int8 training: rounding to it is unbiased, and rounding again changes nothing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE

from neaptide_plugins.int8.grid import round_to_grid

pytestmark = pytest.mark.usefixtures("on_device")


@given(
    group=st.sampled_from([1, 8, 32, 256]),
    exponent=st.integers(-40, 35),
    seeds=st.tuples(st.integers(0, 2**31), st.integers(0, 2**31)),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    channel=st.integers(0, 1),
)
@settings(max_examples=40, deadline=None)
def test_what_was_rounded_once_stays(
    group: int, exponent: int, seeds: tuple[int, int], dtype: torch.dtype, channel: int
) -> None:
    generator = torch.Generator(DEVICE).manual_seed(seeds[0])
    weight = (torch.randn(16, 16, generator=generator) * 2.0**exponent).to(dtype)
    weight[3] = 0
    once = round_to_grid(weight, group, seeds[0], channel)
    value = once.decode(dtype)
    again = round_to_grid(value, group, seeds[1], channel).decode(dtype)
    assert torch.equal(value, again)
    assert torch.equal(value.float(), once.decode(torch.float32))
    step = once.scale.max()
    assert (value.float() - weight.float()).abs().max() <= step


def test_the_mean_over_many_roundings_is_the_weight() -> None:
    weight = torch.randn(32, 64, generator=torch.Generator(DEVICE).manual_seed(0))
    seeds = 400
    roundings = [round_to_grid(weight, 64, seed) for seed in range(seeds)]
    mean = sum(codes.decode(torch.float32) for codes in roundings) / seeds
    step = roundings[0].scale.max()
    # Of one rounding the deviation is half a step at most.
    deviation = 0.5 * step / seeds**0.5
    assert (mean - weight).abs().max() < 5 * deviation
    assert (mean - weight).mean().abs() < 5 * deviation / weight.numel() ** 0.5


def test_an_inf_or_nan_makes_its_group_nan_and_no_other() -> None:
    for broken in (torch.inf, -torch.inf, torch.nan):
        weight = torch.ones(4, 8)
        weight[2, 5] = broken
        value = round_to_grid(weight, 8, 1).decode(torch.float32)
        assert value[2].isnan().all()
        assert torch.equal(torch.ones(3, 8), value[[0, 1, 3]])


def test_magnitudes_next_to_nothing_are_zeros() -> None:
    weight = torch.full((2, 8), 1e-41)
    assert torch.equal(torch.zeros(2, 8), round_to_grid(weight, 8, 1).decode(torch.float32))
