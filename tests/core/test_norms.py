"""The norm of a long tensor: near the exact one, in every dtype, at every magnitude."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE

from neaptide.norms import long_norm

pytestmark = pytest.mark.usefixtures("on_device")


def exact(tensor: torch.Tensor) -> float:
    return math.sqrt(math.fsum(value * value for value in tensor.double().flatten().tolist()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (70, 900), ((1 << 15) + 1,)], ids=str)
def test_the_norm_is_that_of_all_elements(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    assert exact(tensor) == pytest.approx(long_norm(tensor), rel=1e-6)


def test_a_tensor_that_is_not_contiguous_has_the_same_norm() -> None:
    tensor = torch.randn(90, 700, device=DEVICE)
    assert long_norm(tensor) == pytest.approx(long_norm(tensor.T), rel=1e-6)
    assert long_norm(tensor[:, :1]) == pytest.approx(long_norm(tensor[:, :1].clone()), rel=1e-6)


@pytest.mark.parametrize("value", [3e38, 1e25, 1e-15, 1e-25, 1e-38, 0.0])
def test_squares_that_float32_cannot_hold_do_not_matter(value: float) -> None:
    assert 3.0 * value == pytest.approx(long_norm(torch.full((9,), value, device=DEVICE)), rel=1e-6)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("place", [0, 1 << 15, 70_000])
def test_one_value_that_is_not_finite_is_never_hidden(place: int, value: float) -> None:
    tensor = torch.zeros(70_001, device=DEVICE)
    tensor[place] = value
    assert not math.isfinite(long_norm(tensor))


def test_equal_numbers_are_rounded_the_same_way_and_still_leave_five_digits() -> None:
    tensor = torch.full((1 << 24,), 0.1)
    assert float(tensor[0]) * 4096 == pytest.approx(long_norm(tensor), rel=2e-5)
