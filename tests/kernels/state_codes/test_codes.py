"""Laws of 8-bit state codes: round trips, unbiased rounding, no zero that rounding made."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels import state_codes as codes
from neaptide_kernels.counter_random import random_bits

pytestmark = pytest.mark.usefixtures("on_device")

SIGNED = torch.arange(-127, 128, dtype=torch.int8).to(DEVICE)
UNSIGNED = torch.arange(256, dtype=torch.int16).to(DEVICE, torch.uint8)


def scales(elements: int, scale: float) -> torch.Tensor:
    return torch.full((codes.blocks_of(elements),), scale)


def fractions(elements: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    return codes.fractions(random_bits(seed, torch.arange(elements)))


@given(st.floats(2.0**-80, 2.0**80, width=32), st.integers(0, 99))
def test_what_a_code_stands_for_is_stored_as_that_code(scale: float, seed: int) -> None:
    fraction, other = fractions(256, seed)

    signed, kept = codes.encode_signed(
        codes.decode_signed(SIGNED, scales(255, scale)), fraction[:255]
    )
    unsigned, also = codes.encode_unsigned(
        codes.decode_unsigned(UNSIGNED, scales(256, scale)), other
    )

    # The scale that comes back may be a bit off, and a remainder of 1e-7 is then rounded up rarely.
    assert (signed.int() - SIGNED.int()).abs().max() <= 1
    assert (signed != SIGNED).sum() <= 1
    assert (unsigned.int() - UNSIGNED.int()).abs().max() <= 1
    assert (unsigned != UNSIGNED).sum() <= 2
    torch.testing.assert_close(kept, scales(255, scale), rtol=3e-7, atol=0)
    torch.testing.assert_close(also, scales(256, scale), rtol=3e-7, atol=0)


@given(st.floats(-1, 1, width=32), st.floats(0, 1, width=32))
def test_a_value_is_stored_as_one_of_the_two_codes_around_it(signed: float, square: float) -> None:
    fraction, other = fractions(64)

    mean, scale = codes.encode_signed(torch.tensor([1.0] + [signed] * 63), fraction)
    step = 2 * math.sqrt(abs(signed)) / 127 + 1 / 127**2 + 1e-6
    assert (codes.decode_signed(mean, scale)[1:] - signed).abs().max() <= step

    mean, scale = codes.encode_unsigned(torch.tensor([1.0] + [square] * 63), other)
    root = (codes.decode_unsigned(mean, scale)[1:] ** 0.25 - square**0.25).abs().max()
    assert root <= 1.01 / 255


@pytest.mark.parametrize("value", [0.9, 0.4, 1e-2, 1e-4, 3e-5])
def test_rounding_is_right_in_the_mean(value: float) -> None:
    number = 255 * 4000
    values = torch.full((number // 255, 256), value)
    values[:, 0] = 1.0
    first, second = fractions(values.numel(), seed=3)

    signed = codes.decode_signed(*codes.encode_signed(-values.view(-1), first))
    square = codes.decode_unsigned(*codes.encode_unsigned(values.view(-1), second))

    for decoded, wanted in ((signed, -value), (square, value)):
        inner = decoded.view(-1, 256)[:, 1:].double()
        error = float(inner.std()) / math.sqrt(number)
        assert abs(float(inner.mean()) - wanted) <= 5 * error + 2.0**-16 * value


def test_only_zero_has_the_code_zero_where_roots_are_divided_by() -> None:
    tiny = torch.tensor([1.0, 0.0, 1e-12, 1e-20, 1e-38])

    stored, scale = codes.encode_unsigned(tiny, torch.full((5,), 0.999))

    assert [255, 0, 1, 1, 1] == stored.tolist()
    assert (codes.decode_unsigned(stored, scale)[2:] > 0).all()


@pytest.mark.parametrize("largest", [3e-45, 1e-39, 1e-30, 1e30, 3e38])
def test_blocks_of_any_size_have_finite_scales(largest: float) -> None:
    values = torch.tensor([largest, largest / 2, 0.0])
    fraction = torch.full((3,), 0.5)

    mean = codes.decode_signed(*codes.encode_signed(-values, fraction))
    square, scale = codes.encode_unsigned(values, fraction)

    assert mean.isfinite().all()
    assert scale.isfinite().all()
    assert 0 == square[2]
    assert (codes.decode_unsigned(square, scale)[:2] > 0).all()
    if largest >= 1e-30:
        torch.testing.assert_close(mean, -values, rtol=0.03, atol=0)


def test_a_broken_value_breaks_its_block_alone() -> None:
    values = torch.ones(600)
    values[300] = torch.inf
    values[599] = torch.nan
    fraction, _ = fractions(600)

    for encode, decode in (
        (codes.encode_signed, codes.decode_signed),
        (codes.encode_unsigned, codes.decode_unsigned),
    ):
        decoded = decode(*encode(values, fraction))
        assert decoded[256:].isnan().all()
        torch.testing.assert_close(decoded[:256], values[:256], rtol=1e-6, atol=0)


def test_bfloat16_is_stored_right_in_the_mean_and_what_it_can_hold_exactly() -> None:
    bits = random_bits(1, torch.arange(100_000)) & 0xFFFF

    weight = codes.stored(torch.full((100_000,), 1.0 + 2.0**-10), torch.bfloat16, bits)
    assert {1.0, 1.0 + 2.0**-7} == set(weight.tolist())
    assert abs(weight.double().mean().item() - 1.0 - 2.0**-10) < 5 * 2.0**-7 * 0.33 / 316

    exact = torch.tensor([0.0, -1.5, 3e38, torch.inf, -torch.inf, 1e-40])
    kept = codes.stored(exact.bfloat16().float(), torch.bfloat16, bits[:6])
    assert torch.equal(exact.bfloat16(), kept)
    assert codes.stored(torch.full((6,), torch.nan), torch.bfloat16, bits[:6]).isnan().all()


def test_bits_depend_on_seed_step_tensor_and_place_alone() -> None:
    step = torch.tensor(7.0)
    whole = codes.random_bits(1, step, 2, slice(0, 1000))

    assert torch.equal(whole[600:700], codes.random_bits(1, step, 2, slice(600, 700)))
    others = [
        codes.random_bits(2, step, 2, slice(0, 1000)),
        codes.random_bits(1, torch.tensor(8.0), 2, slice(0, 1000)),
        codes.random_bits(1, step, 3, slice(0, 1000)),
    ]
    for other in others:
        assert (whole == other).sum() < 3
    upper, lower = codes.fractions(whole)
    for fraction in (upper, lower, codes.third(whole) / 65536):
        assert abs(float(fraction.double().mean()) - 0.5) < 0.05
        assert 0 <= fraction.min()
        assert fraction.max() < 1
