"""What a weight's codes stand for, and how far that is from the weight."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE

from neaptide_plugins.int8.calibration import calibrated
from neaptide_plugins.int8.scheme import Scheme, WeightCodes, bytes_of, encode

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = ((24, 32), (6, 16, 4), (4, 8, 3, 3), (1, 64), (16, 1))


def scheme(granularity: str = "channel", *, symmetric: bool = True, block: int = 8) -> Scheme:
    return Scheme(granularity, block, symmetric)  # type: ignore[arg-type]  # a literal


def weight(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    magnitudes = 10 ** (4 * torch.rand(shape[0], generator=generator) - 3)
    spread = magnitudes.view(-1, *(1 for _ in shape[1:]))
    return (torch.randn(shape, generator=generator) * spread).to(dtype)


def step_of(codes: WeightCodes, shape: torch.Size) -> torch.Tensor:
    """Return each element's distance from one code to the next."""
    moved = torch.empty(shape).movedim(codes.channel, 0)
    rows = codes.scale[:, None].expand(-1, codes.group)
    return rows.reshape(moved.shape).movedim(0, codes.channel)


@given(
    shape=st.sampled_from(SHAPES),
    granularity=st.sampled_from(["tensor", "channel", "block"]),
    symmetric=st.booleans(),
    channel=st.integers(0, 1),
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
)
@settings(max_examples=80, deadline=None)
def test_no_element_is_off_by_more_than_half_a_step(
    shape: tuple[int, ...],
    granularity: str,
    symmetric: bool,  # noqa: FBT001 - hypothesis names it
    channel: int,
    seed: int,
    dtype: torch.dtype,
) -> None:
    given_weight = weight(shape, seed, dtype)
    row = given_weight.numel() // shape[channel]
    chosen = scheme(
        granularity, symmetric=symmetric, block=next(b for b in (8, 4, 3, 1) if not row % b)
    )
    codes = encode(given_weight, chosen, channel)
    off = (codes.decode(torch.float32) - given_weight.float()).abs()
    # The zero point is rounded as well, which takes another half.
    limit = (0.5 if symmetric else 1.0) * step_of(codes, given_weight.shape) * (1 + 1e-5)
    assert bool((off <= limit).all())
    assert codes.bytes == bytes_of(given_weight.shape, chosen, channel)
    assert codes.codes.min() >= (-127 if symmetric else -128)
    assert given_weight.shape == codes.decode(dtype).shape


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("value", [0.0, 1.0, -3.5, 1e-40, 2.0**-130])
def test_a_constant_weight_keeps_its_value_or_is_zero_where_it_is_next_to_nothing(
    value: float, *, symmetric: bool
) -> None:
    constant = torch.full((4, 8), value)
    decoded = encode(constant, scheme(symmetric=symmetric)).decode(torch.float32)
    expected = constant if abs(value) > 2.0**-120 else torch.zeros(4, 8)
    torch.testing.assert_close(decoded, expected, rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("broken", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("calibration", [None, "minmax", "percentile", "mse"])
def test_a_channel_with_an_inf_or_nan_is_nan_and_the_others_are_not(
    broken: float, calibration: str | None
) -> None:
    given_weight = weight((4, 16), 0)
    given_weight[1, 3] = broken
    ranges = calibrated(given_weight, scheme(), calibration) if calibration else None  # type: ignore[arg-type]  # a literal
    decoded = encode(given_weight, scheme(), ranges=ranges).decode(torch.float32)
    assert decoded[1].isnan().any()
    assert decoded[[0, 2, 3]].isfinite().all()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("how", ["percentile", "mse"])
def test_ranges_without_outliers_spend_the_codes_on_the_rest(how: str, *, symmetric: bool) -> None:
    given_weight = torch.randn(8, 4096, generator=torch.Generator(DEVICE).manual_seed(1))
    given_weight[:, 7] = 9.0
    chosen = scheme(symmetric=symmetric)
    ranges = calibrated(given_weight, chosen, how, percentile=99.9)  # type: ignore[arg-type]  # a literal
    clipped = encode(given_weight, chosen, ranges=ranges).decode(torch.float32)
    whole = encode(given_weight, chosen).decode(torch.float32)
    inside = (given_weight >= ranges.low[:, None]) & (given_weight <= ranges.high[:, None])
    assert 0.99 < inside.float().mean() < 1.0
    assert (clipped - given_weight)[inside].norm() < (whole - given_weight)[inside].norm()
    if how == "mse":
        assert (clipped - given_weight).norm() <= (whole - given_weight).norm()


def test_the_range_of_all_values_changes_nothing() -> None:
    given_weight = weight((8, 32), 3)
    ranges = calibrated(given_weight, scheme(), "minmax")
    with_ranges, without = (
        encode(given_weight, scheme(), ranges=ranges),
        encode(given_weight, scheme()),
    )
    assert torch.equal(with_ranges.codes, without.codes)
    assert torch.equal(with_ranges.scale, without.scale)


def test_blocks_that_do_not_divide_a_channel_are_refused() -> None:
    with pytest.raises(ValueError, match="12 elements are not a multiple of the block of 8"):
        encode(torch.ones(3, 12), scheme("block"))
