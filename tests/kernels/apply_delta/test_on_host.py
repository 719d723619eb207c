"""Deltas added and rounded on a CPU by Numba, beside the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from neaptide_kernels.apply_delta import apply_delta, apply_int8_delta
from neaptide_kernels.apply_delta.op import HOST, numbers
from neaptide_kernels.int8 import quantize_int8
from neaptide_kernels.registry import KERNELS
from neaptide_toolkit.testing import check_provider

pytest.importorskip("numba")

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_kernels.registry import Provider

TAKEN = [torch.float32, torch.bfloat16]
KINDS = [(weight, delta) for weight in TAKEN for delta in TAKEN]
ODD = [torch.nan, torch.inf, -torch.inf, -0.0, 1e-40, -1e-45, 3.4e38, -3.4e38, 2.0**-126, 1.0]
LONG = 2_000_003
CPU = torch.device("cpu")


def placed(values: torch.Tensor, offset: int, *, gaps: bool) -> torch.Tensor:
    """Return a copy that starts `offset` elements into its memory, perhaps with gaps."""
    step = 2 if gaps else 1
    memory = torch.zeros(offset + step * values.numel(), dtype=values.dtype)
    copy = memory[offset::step]
    return copy.copy_(values)


def added(
    provider: str,
    sizes: Sequence[int],
    kinds: tuple[torch.dtype, torch.dtype],
    *,
    sets: int = 1,
    seed: int | None = 0,
    offset: int = 0,
    gaps: bool = False,
    threads: int = 1,
) -> list[torch.Tensor]:
    """Return weights after deltas were added; without a seed they are rounded to the nearest."""
    shapes = [(size,) for size in sizes]
    params = [placed(one.to(kinds[0]), offset, gaps=gaps) for one in numbers(shapes, 0, CPU)]
    deltas = [
        placed(one.to(kinds[1]), offset, gaps=gaps)
        for each in range(sets)
        for one in numbers(shapes, 1 + each, CPU, 1e-2)
    ]
    scale = torch.linspace(-1, 0.7, sets) if sets != 1 else torch.tensor(0.3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)  # torch's powers in `numbers` depend on it
    try:
        with KERNELS.using(apply_delta=provider):
            apply_delta(params, deltas, scale, seed is not None, seed or 0)
    finally:
        torch.set_num_threads(before)
    return params


@pytest.mark.parametrize("kinds", KINDS, ids=str)
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(
        st.integers(0, 40) | st.sampled_from([1023, 1024, 1025, 2048, 5000]), min_size=1, max_size=4
    ),
    sets=st.integers(0, 3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    offset=st.integers(0, 9),
    gaps=st.booleans(),
)
def test_sums_have_the_bits_of_the_reference(
    kinds: tuple[torch.dtype, torch.dtype],
    sizes: list[int],
    sets: int,
    seed: int | None,
    offset: int,
    *,
    gaps: bool,
) -> None:
    expected, got = (
        added(provider, sizes, kinds, sets=sets, seed=seed, offset=offset, gaps=gaps)
        for provider in ("reference", "numba")
    )
    assert all(map(torch.equal, expected, got))


@pytest.mark.parametrize("sets", [1, 2])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_neither_threads_nor_pieces_change_a_bit(
    kinds: tuple[torch.dtype, torch.dtype], sets: int
) -> None:
    expected = added("reference", [7, LONG], kinds, sets=sets)
    for threads in (1, 2, 3):
        got = added("numba", [7, LONG], kinds, sets=sets, threads=threads)
        assert all(map(torch.equal, expected, got))


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("kinds", KINDS, ids=str)
def test_inf_nan_and_denormals_are_as_in_the_reference(
    kinds: tuple[torch.dtype, torch.dtype], *, stochastic: bool
) -> None:
    odd = torch.tensor(ODD)
    results = []
    for provider in ("reference", "numba"):
        weight = odd.repeat(len(ODD)).to(kinds[0])
        delta = odd.repeat_interleave(len(ODD)).to(kinds[1])
        with KERNELS.using(apply_delta=provider):
            apply_delta([weight], [delta], torch.tensor(1.0), stochastic, 3)
        results.append(weight)
    expected, got = results
    assert torch.equal(expected.isnan(), got.isnan())
    whole = {torch.float32: torch.int32, torch.bfloat16: torch.int16}[kinds[0]]
    same = expected.view(whole) == got.view(whole)
    assert bool((same | expected.isnan()).all())


def coded(
    provider: str,
    sizes: Sequence[int],
    dtype: torch.dtype,
    group: int,
    *,
    sets: int = 1,
    seed: int | None = 0,
    threads: int = 1,
) -> list[torch.Tensor]:
    """Return weights after deltas given as codes were added; see `added`."""
    shapes = [(size,) for size in sizes]
    params = [one.to(dtype) for one in numbers(shapes, 0, CPU)]
    pairs = [
        quantize_int8(one, group)[:2]
        for each in range(sets)
        for one in numbers(shapes, 1 + each, CPU)
    ]
    codes, sizes_of = [one for one, _ in pairs], [one for _, one in pairs]
    scale = torch.linspace(-1, 0.7, sets) if sets != 1 else torch.tensor(0.3)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with KERNELS.using(apply_int8_delta=provider):
            given = params, codes, sizes_of, scale, group, seed is not None, seed or 0
            apply_int8_delta(*given)
    finally:
        torch.set_num_threads(before)
    return params


@pytest.mark.parametrize("dtype", TAKEN, ids=str)
@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(
        st.integers(0, 40) | st.sampled_from([1023, 1024, 1025, 5000]), min_size=1, max_size=3
    ),
    group=st.sampled_from([1, 3, 64, 1000, 1024, 1 << 40]),
    sets=st.integers(0, 3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)
def test_sums_of_codes_have_the_bits_of_the_reference(
    dtype: torch.dtype, sizes: list[int], group: int, sets: int, seed: int | None
) -> None:
    expected, got = (
        coded(provider, sizes, dtype, group, sets=sets, seed=seed)
        for provider in ("reference", "numba")
    )
    assert all(map(torch.equal, expected, got))


@pytest.mark.parametrize("group", [300, 1_500_000])
@pytest.mark.parametrize("sets", [1, 2])
def test_neither_threads_nor_pieces_change_a_bit_of_sums_of_codes(sets: int, group: int) -> None:
    expected = coded("reference", [7, LONG], torch.bfloat16, group, sets=sets)
    for threads in (1, 3):
        got = coded("numba", [7, LONG], torch.bfloat16, group, sets=sets, threads=threads)
        assert all(map(torch.equal, expected, got))


def test_weights_of_several_dtypes_are_added_each_in_its_own() -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    pairs = [quantize_int8(one, 64)[:2] for one in numbers([(300,)] * 4, 1, CPU)]
    codes, sizes = [one for one, _ in pairs], [one for _, one in pairs]

    def mixed(provider: str) -> list[torch.Tensor]:
        params = [
            one.to(dtype) for one, dtype in zip(numbers([(300,)] * 4, 0, CPU), dtypes, strict=True)
        ]
        half = torch.tensor(0.5)
        with KERNELS.using(apply_delta=provider, apply_int8_delta=provider):
            apply_delta(params, numbers([(300,)] * 4, 1, CPU), half, True, 9)
            apply_int8_delta(params, codes, sizes, half, 64, True, 9)
        return params

    assert all(map(torch.equal, mixed("reference"), mixed("numba")))


@pytest.mark.parametrize("provider", HOST, ids=lambda provider: provider.op)
def test_it_agrees_with_every_sample_of_the_op(provider: Provider) -> None:
    check_provider(provider)


@pytest.mark.parametrize("dtype", [*TAKEN, torch.float16, torch.float64], ids=str)
def test_it_runs_what_it_takes_without_being_asked_for(dtype: torch.dtype) -> None:
    weight = torch.zeros(3, dtype=dtype)
    arguments = [weight], [torch.zeros(3)], torch.tensor(1.0), True, 5
    told = KERNELS.explain("apply_delta", arguments)
    assert told.chosen == ("numba" if dtype in TAKEN else "reference")


@pytest.mark.parametrize(
    ("elements", "stochastic", "chosen"),
    [(3, False, "reference"), (1 << 20, False, "numba"), (3, True, "numba")],
)
def test_a_rare_jump_of_small_weights_does_not_load_numba(
    elements: int, chosen: str, *, stochastic: bool
) -> None:
    weight = torch.zeros(elements)
    told = KERNELS.explain("apply_delta", ([weight], [weight], torch.tensor(1.0), stochastic))
    assert told.chosen == chosen
    assert (told.why == "the only one for so few elements") == (chosen == "reference")


def test_it_does_not_run_on_another_device() -> None:
    weight = torch.zeros(3, device="meta")
    told = KERNELS.explain("apply_delta", ([weight], [weight], torch.tensor(1.0, device="meta")))
    (reason,) = [each.reason for each in told.providers if each.provider == "numba"]
    assert reason == "it runs on a CPU only"
