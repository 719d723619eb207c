"""Int8 codes made and decoded on a CPU by Numba, beside the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_kernels.int8.op import HOST, values
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.testing import check_provider

pytest.importorskip("numba")

if TYPE_CHECKING:
    from neaptide_kernels.registry import Provider

TAKEN = [torch.float32, torch.bfloat16]
ODD = [torch.nan, -torch.nan, torch.inf, -torch.inf]
EDGES = [-0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 2.0**-120, 2.0**-121, 2.0**-126, 0.5, 1.5, 127.0]
LONG = 200_003
CPU = torch.device("cpu")


def quantized(
    provider: str, x: torch.Tensor, group: int, *, affine: bool, seed: int | None, threads: int = 1
) -> tuple[torch.Tensor, ...]:
    """Return codes, scales and zeros; without a seed they are rounded to the nearest."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with KERNELS.using(quantize_int8=provider):
            return quantize_int8(x, group, affine, seed is not None, seed or 0)
    finally:
        torch.set_num_threads(before)


def same(expected: tuple[torch.Tensor, ...], got: tuple[torch.Tensor, ...]) -> bool:
    """Return whether all numbers have the same bits, and NaN are in the same places."""
    return all(
        (one.dtype, one.shape) == (other.dtype, other.shape)
        and torch.equal(one.isnan(), other.isnan())
        and torch.equal(one.nan_to_num().signbit(), other.nan_to_num().signbit())
        and torch.equal(one.nan_to_num(), other.nan_to_num())
        for one, other in zip(expected, got, strict=True)
    )


@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@settings(max_examples=80, deadline=None)
@given(
    numbers=st.lists(st.sampled_from(EDGES) | st.floats(width=32), max_size=40),
    group=st.sampled_from([1, 2, 3, 7, 64, 1 << 40]),
    affine=st.booleans(),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)
def test_codes_have_the_bits_of_the_reference_whatever_the_numbers(
    dtype: torch.dtype, numbers: list[float], group: int, seed: int | None, *, affine: bool
) -> None:
    x = torch.tensor(numbers, dtype=torch.float32).to(dtype)
    expected, got = (
        quantized(provider, x, group, affine=affine, seed=seed)
        for provider in ("reference", "numba")
    )
    assert same(expected, got)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@pytest.mark.parametrize("group", [256, 65_536, 65_537, 199_999, 1 << 40])
def test_neither_threads_nor_long_groups_change_a_bit(
    group: int, dtype: torch.dtype, seed: int | None, *, affine: bool
) -> None:
    x = values(LONG, torch.float32, CPU).clamp(-1e4, 2e4).to(dtype)
    expected = quantized("reference", x, group, affine=affine, seed=seed)
    for threads in (1, 3):
        assert same(
            expected, quantized("numba", x, group, affine=affine, seed=seed, threads=threads)
        )


def test_inverse_scales_are_rounded_twice_as_those_of_torch() -> None:
    # Rounded once, some of so many codes differ.
    x = torch.rand(1 << 22, generator=torch.Generator().manual_seed(0)) - 0.5
    for affine in (False, True):
        expected, got = (
            quantized(provider, x, 64, affine=affine, seed=None)
            for provider in ("reference", "numba")
        )
        assert same(expected, got)


@pytest.mark.parametrize("number", ODD)
@pytest.mark.parametrize("group", [64, 70_000])
@pytest.mark.parametrize("affine", [False, True])
def test_a_broken_number_breaks_its_group_as_in_the_reference(
    group: int, number: float, *, affine: bool
) -> None:
    x = values(LONG, torch.float32, CPU)
    x[140_001] = number
    expected, got = (
        quantized(provider, x, group, affine=affine, seed=None)
        for provider in ("reference", "numba")
    )
    assert int(got[1].isnan().sum()) == 1
    assert same(expected, got)


@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@settings(max_examples=60, deadline=None)
@given(
    elements=st.integers(0, 40) | st.sampled_from([1023, 1024, 1025, 3000, 150_000]),
    group=st.sampled_from([1, 3, 64, 300, 1024, 70_000, 1 << 40]),
    with_zero=st.booleans(),
    data=st.data(),
)
def test_decoded_numbers_have_the_bits_of_the_reference(
    dtype: torch.dtype, elements: int, group: int, data: st.DataObject, *, with_zero: bool
) -> None:
    draw = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    groups = -(-elements // group)
    codes = torch.randint(-128, 128, (elements,), generator=draw, dtype=torch.int8)
    scale = values(groups, torch.float32, CPU)
    if groups:
        scale[0] = data.draw(st.sampled_from([*ODD, *EDGES]))
    zero = torch.randint(-128, 128, (groups,), generator=draw, dtype=torch.int8)
    results = []
    for provider in ("reference", "numba"):
        with KERNELS.using(dequantize_int8=provider):
            given = codes, scale, zero if with_zero else None, group, dtype
            results.append((dequantize_int8(*given),))
    assert same(*results)


@pytest.mark.parametrize("provider", HOST, ids=lambda provider: provider.op)
def test_it_agrees_with_every_sample_of_the_op(provider: Provider) -> None:
    check_provider(provider)


@pytest.mark.parametrize(
    ("elements", "dtype", "chosen"),
    [
        (1 << 20, torch.float32, "numba"),
        (1 << 20, torch.bfloat16, "numba"),
        (1 << 20, torch.float16, "torch"),
        (1 << 20, torch.float64, "torch"),
        (1 << 10, torch.float32, "torch"),
    ],
)
def test_it_runs_large_calls_that_it_takes(elements: int, dtype: torch.dtype, chosen: str) -> None:
    x = torch.zeros(elements, dtype=dtype)
    assert KERNELS.explain("quantize_int8", (x, 64)).chosen == chosen
    codes, scale = torch.zeros(elements, dtype=torch.int8), torch.zeros(elements // 64)
    given = codes, scale, None, 64, dtype
    assert KERNELS.explain("dequantize_int8", given).chosen == chosen


def test_what_it_does_not_take_is_said() -> None:
    def reason(op: str, *given: object) -> str:
        told = KERNELS.explain(op, given)
        return next(each.reason for each in told.providers if each.provider == "numba")

    on_meta = torch.zeros(4, device="meta")
    half = torch.float16
    codes = torch.zeros(4, dtype=torch.int8)
    huge = torch.zeros(1).expand((1 << 32) + 1)
    assert reason("quantize_int8", on_meta, 4) == "it runs on a CPU only"
    assert "x is torch.float16" in reason("quantize_int8", torch.zeros(4, dtype=half), 4)
    assert "up to 2**32 elements" in reason("quantize_int8", huge, 4, False, True)
    assert "dtype is torch.float16" in reason(
        "dequantize_int8", codes, torch.ones(1), None, 4, half
    )
