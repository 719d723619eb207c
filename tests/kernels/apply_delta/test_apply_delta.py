"""Laws of `apply_delta` and `apply_int8_delta`: sums, rounding, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_kernels.apply_delta import apply_delta, apply_int8_delta
from neaptide_kernels.apply_delta.op import numbers
from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.testing.parting import same_bits

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(5, 7), (64,), (), (0,), (33, 3)]
NARROW = [torch.bfloat16, torch.float16]
HALF = torch.tensor(0.5)


def cloned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]


def neighbours(values: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest number of a dtype that is not above each float32, and the least not below.

    Both in float32.
    """
    nearest = values.to(dtype)
    up = torch.nextafter(nearest, torch.full_like(nearest, torch.inf)).float()
    down = torch.nextafter(nearest, torch.full_like(nearest, -torch.inf)).float()
    near = nearest.float()
    return torch.where(near > values, down, near), torch.where(near < values, up, near)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *NARROW], ids=str)
@pytest.mark.parametrize("delta", [torch.float32, torch.bfloat16], ids=str)
def test_adds_in_float32_at_least_and_rounds_once(dtype: torch.dtype, delta: torch.dtype) -> None:
    params = [tensor.to(dtype) for tensor in numbers(SHAPES, 0, DEVICE)]
    deltas = [tensor.to(delta) for tensor in numbers(SHAPES, 1, DEVICE)]
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    expected = [
        (weight.to(wide) + each.to(wide) * 0.5).to(dtype)
        for weight, each in zip(params, deltas, strict=True)
    ]
    apply_delta(params, deltas, HALF)
    assert all(map(same_bits, expected, params))


def test_sets_are_added_one_after_another() -> None:
    scales = torch.tensor([0.1, -2.0, 3.0])
    sets = [numbers(SHAPES, seed, DEVICE) for seed in (1, 2, 3)]
    together, apart = numbers(SHAPES, 0, DEVICE), numbers(SHAPES, 0, DEVICE)
    apply_delta(together, [delta for each in sets for delta in each], scales)
    for each, scale in zip(sets, scales, strict=True):
        apply_delta(apart, each, scale)
    assert all(map(same_bits, apart, together))


@pytest.mark.parametrize("dtype", [torch.float32, *NARROW], ids=str)
@pytest.mark.parametrize("stochastic", [False, True])
def test_codes_are_the_deltas_they_stand_for(dtype: torch.dtype, *, stochastic: bool) -> None:
    pairs = [quantize_int8(delta, 16)[:2] for delta in numbers(SHAPES, 1, DEVICE)]
    codes, sizes = [codes for codes, _ in pairs], [sizes for _, sizes in pairs]
    deltas = [dequantize_int8(*pair, None, 16) for pair in pairs]
    expected = [tensor.to(dtype) for tensor in numbers(SHAPES, 0, DEVICE)]
    params = cloned(expected)
    apply_delta(expected, deltas, HALF, stochastic, 5)
    apply_int8_delta(params, codes, sizes, HALF, 16, stochastic, 5)
    assert all(map(same_bits, expected, params))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@given(
    value=st.floats(-65_000, 65_000, width=32) | st.floats(-(2.0**-13), 2.0**-13, width=32),
    seed=st.integers(-(2**63), 2**63 - 1),
)
def test_stochastic_rounding_goes_to_a_neighbour(
    dtype: torch.dtype, value: float, seed: int
) -> None:
    values = torch.full((64,), value)
    weight = torch.zeros(64, dtype=dtype)
    apply_delta([weight], [values], torch.tensor(1.0), True, seed)
    below, above = neighbours(values + 0.0, dtype)
    result = weight.float()
    assert bool(((result == below) | (result == above)).all())


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("size", [1.0, 3e-5, 2e-7, 2.0**-14])
def test_stochastic_rounding_has_the_right_mean(dtype: torch.dtype, size: float) -> None:
    values = size * torch.rand(16, generator=torch.Generator(DEVICE).manual_seed(0)).repeat(
        10_000, 1
    )
    weight = torch.zeros_like(values, dtype=dtype)
    apply_delta([weight], [values], torch.tensor(1.0), True, 3)
    below, above = neighbours(values[0], dtype)
    off = (weight.double().mean(0) - values[0].double()) / (above - below)
    # A mean of 10,000 has a standard deviation of at most 0.005 of the spacing.
    assert float(off.abs().max()) < 0.02


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_what_is_representable_stays(dtype: torch.dtype) -> None:
    patterns = torch.arange(-(2**15), 2**15).to(torch.int16)
    weight = patterns.view(dtype).clone()
    apply_delta([weight], [torch.zeros(2**16)], torch.tensor(1.0), True)
    finite = ~patterns.view(dtype).isnan()
    zero = patterns.view(dtype) == 0  # -0 + 0 is 0
    assert same_bits(patterns.view(dtype)[finite & ~zero], weight[finite & ~zero])
    assert bool(weight[~finite].isnan().all())


def test_each_tensor_and_each_seed_draws_its_own() -> None:
    values = torch.full((4096,), 1 + 2**-9)
    draws = []
    for seed in (0, 1):
        weights = [torch.zeros(4096, dtype=torch.bfloat16) for _ in range(2)]
        apply_delta(weights, [values, values], torch.tensor(1.0), True, seed)
        draws += weights
    for place, one in enumerate(draws):
        for other in draws[:place]:
            assert 0.3 < float((one == other).float().mean()) < 0.7


def test_small_deltas_are_lost_to_the_nearest_but_not_to_chance() -> None:
    delta, scale = torch.full((1024,), 1e-3), torch.tensor(1.0)
    nearest, stochastic = (torch.ones(1024, dtype=torch.bfloat16) for _ in range(2))
    for seed in range(100):
        apply_delta([nearest], [delta], scale)
        apply_delta([stochastic], [delta], scale, True, seed)
    assert bool((nearest == 1).all())
    assert abs(float(stochastic.double().mean()) - 1.1) < 2e-3


def test_empty_lists_change_nothing() -> None:
    apply_delta([], [], HALF)
    params = numbers(SHAPES, 0, DEVICE)
    before = cloned(params)
    apply_delta(params, [], HALF)
    apply_delta(params, [], torch.ones(0))
    assert all(map(same_bits, before, params))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"deltas": [torch.zeros(3)] * 3}, "3 deltas are not a whole number of sets for 2 weights"),
        ({"deltas": [torch.zeros(3), torch.zeros(4)]}, r"deltas\[1\] is \[4\], its weight is \[3"),
        ({"scale": torch.ones(2)}, r"0-dim or \[sets\] \(got \[2\] for 1 sets\)"),
        ({"scale": torch.tensor(1)}, r"scale\[0\] is torch.int64, not a floating dtype"),
        ({"params": [torch.zeros(3).int()] * 2}, r"params\[0\] is torch.int32"),
    ],
)
def test_what_does_not_go_together_is_refused(change: dict[str, Any], says: str) -> None:
    arguments = {
        "params": [torch.zeros(3), torch.zeros(3)],
        "deltas": [torch.zeros(3), torch.zeros(3)],
        "scale": HALF,
    }
    with pytest.raises(ValueError, match=says):
        apply_delta(**{**arguments, **change})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"group": 0}, "group must be at least 1 element"),
        ({"group": 2}, r"scales of torch.float32 \[2\]"),
        ({"code_scales": []}, "there are 0 code_scales for 1 codes"),
        ({"codes": [torch.zeros(4).char()]}, r"codes\[0\] is \[4\], its weight is \[3\]"),
        ({"codes": [torch.zeros(3)]}, r"codes\[0\] and code_scales\[0\] are torch.float32"),
    ],
)
def test_codes_that_do_not_go_together_are_refused(change: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {
        "params": [torch.zeros(3)],
        "codes": [torch.zeros(3).char()],
        "code_scales": [torch.ones(1)],
        "scale": HALF,
        "group": 64,
    }
    with pytest.raises(ValueError, match=says):
        apply_int8_delta(**{**arguments, **change})
