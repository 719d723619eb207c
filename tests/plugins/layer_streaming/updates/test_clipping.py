from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import clip_grad_norm_

from neaptide_plugins.layer_streaming.updates.clipping import (
    add_squares,
    clip_per_tensor,
    coefficient,
    latest_finite,
    norms_of,
    scale,
)
from neaptide_toolkit.testing.parting import same_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def gradients_of(dtype: torch.dtype = torch.float32, size: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(4, 6), (), (130,), (3, 2, 5), (0,)]
    return [(size * torch.randn(shape, generator=generator)).to(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("max_norm", [0.0, 1e-3, 1.0, 5.0, 1e6])
def test_each_tensor_is_clipped_as_torch_clips_it_alone(
    dtype: torch.dtype, max_norm: float
) -> None:
    ours, theirs = gradients_of(dtype), gradients_of(dtype)
    clip_per_tensor(ours, max_norm)
    for gradient in theirs:
        parameter = nn.Parameter(torch.zeros_like(gradient))
        parameter.grad = gradient
        clip_grad_norm_([parameter], max_norm)
    assert all(map(same_bits, theirs, ours))


@given(
    st.lists(st.floats(-(2.0**50), 2.0**50, width=32), min_size=1, max_size=20),
    st.floats(1e-6, 1e6),
)
def test_a_clipped_tensor_is_no_longer_than_asked(values: list[float], max_norm: float) -> None:
    gradient = torch.tensor(values)
    before = gradient.clone()
    clip_per_tensor([gradient], max_norm)
    assert norms_of([gradient])[0].item() <= max_norm * (1 + 1e-5)
    if norms_of([before])[0].item() < max_norm * (1 - 1e-5) - 1e-5:
        assert same_bits(before, gradient)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_clipped_as_torch_clips_it(value: float) -> None:
    ours, theirs = torch.tensor([value, 1.0]), nn.Parameter(torch.zeros(2))
    theirs.grad = ours.clone()
    clip_per_tensor([ours], 1.0)
    clip_grad_norm_([theirs], 1.0)
    assert same_bits(theirs.grad, ours)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_whole_step_clipped_by_its_own_norm_is_clip_grad_norm(dtype: torch.dtype) -> None:
    ours = gradients_of(torch.float64)
    theirs = [nn.Parameter(torch.zeros_like(gradient)) for gradient in ours]
    for parameter, gradient in zip(theirs, ours, strict=True):
        parameter.grad = gradient.clone()
    expected = clip_grad_norm_(theirs, 0.5)
    total = torch.zeros((), dtype=dtype)
    for some in (ours[:2], ours[2:]):
        assert add_squares(total, some).isfinite()
    norm = latest_finite(None, total)
    torch.testing.assert_close(norm, expected.to(dtype))
    scale(ours, coefficient(norm, 0.5))
    for parameter, gradient in zip(theirs, ours, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-6, atol=0)


def test_a_norm_below_the_limit_changes_nothing() -> None:
    gradients = gradients_of(torch.bfloat16)
    before = [gradient.clone() for gradient in gradients]
    scale(gradients, coefficient(torch.tensor(0.1, dtype=torch.float64), 1.0))
    assert all(map(same_bits, before, gradients))


@given(st.lists(st.lists(st.floats(-(2.0**60), 2.0**60, width=32), max_size=8), max_size=6))
def test_squares_of_blocks_add_up(blocks: list[list[float]]) -> None:
    total = torch.zeros((), dtype=torch.float64)
    expected = 0.0
    for values in blocks:
        add_squares(total, [torch.tensor([value]) for value in values])
        expected += sum(value * value for value in values)
    assert math.isclose(expected, total.item(), rel_tol=1e-6, abs_tol=1e-35)


def test_a_norm_whose_square_no_float32_holds_is_finite() -> None:
    total = torch.zeros((), dtype=torch.float64)
    norm = add_squares(total, [torch.tensor([1.5e19]) for _ in range(16)])
    assert norm.isfinite()
    assert math.isclose(6e19, math.sqrt(total.item()), rel_tol=1e-6)
    assert total > torch.finfo(torch.float32).max


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_one_bad_element_is_told_of_its_block_alone(dtype: torch.dtype, value: float) -> None:
    good, bad = gradients_of(dtype), gradients_of(dtype)
    bad[2][77] = value
    total = torch.zeros((), dtype=torch.float64)
    norms = [add_squares(total, block) for block in (good, bad, [], good)]
    assert [True, False, True, True] == [bool(each.isfinite()) for each in norms]
    assert all((torch.float64, ()) == (each.dtype, tuple(each.shape)) for each in norms)
    assert not total.isfinite()


def test_norms_are_wide_enough_and_see_both_parts_of_complex_numbers() -> None:
    many = torch.full((70_000,), 1.0, dtype=torch.float16)
    (norm,) = norms_of([many])
    assert torch.float32 == norm.dtype
    assert math.isclose(math.sqrt(70_000), norm.item(), rel_tol=1e-6)
    assert 5.0 == norms_of([torch.tensor([3 + 4j])])[0].item()
    mixed = norms_of([many, torch.ones(4, dtype=torch.float64)])
    assert [torch.float64] * 2 == [each.dtype for each in mixed]
    assert 2.0 == mixed[1].item()


def test_the_norm_to_clip_by_is_the_last_that_was_finite() -> None:
    first = latest_finite(None, torch.tensor(9.0))
    second = latest_finite(first, torch.tensor(math.nan))
    third = latest_finite(second, torch.tensor(math.inf))
    assert [3.0, 3.0, 3.0] == [first.item(), second.item(), third.item()]
    assert 4.0 == latest_finite(third, torch.tensor(16.0)).item()
    never = latest_finite(None, torch.tensor(math.nan))
    assert 0.0 == coefficient(never, 1.0).item()


def test_nothing_waits_for_the_device() -> None:
    """On a meta tensor every read by the host raises."""
    gradients = [torch.ones(3, 2, device="meta"), torch.ones(5, device="meta")]
    total = torch.zeros((), dtype=torch.float64, device="meta")
    added = add_squares(total, gradients)
    norm = latest_finite(latest_finite(None, total), total)
    scale(gradients, coefficient(norm, 1.0))
    clip_per_tensor(gradients, 1.0)
    assert added.is_meta
    assert norm.is_meta
    with pytest.raises(RuntimeError):
        norm.item()
