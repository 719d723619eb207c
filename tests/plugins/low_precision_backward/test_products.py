"""Products in 8 bits: unbiased where rounding is stochastic, exact sums, non-finite stays so."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE

from neaptide_plugins.low_precision_backward import products
from neaptide_plugins.low_precision_backward.products import (
    Seeds,
    fp8_gradient_product,
    int8_product,
)
from neaptide_toolkit.testing.allocations import peak_of

pytestmark = pytest.mark.usefixtures("on_device")


def factors(rows: int = 48, terms: int = 64, columns: int = 32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(DEVICE).manual_seed(0)
    spread = 10 ** torch.randn(rows, 1, generator=generator)
    return (
        torch.randn(rows, terms, generator=generator) * spread,
        torch.randn(columns, terms, generator=generator),
    )


def test_the_mean_of_many_int8_products_is_the_exact_one() -> None:
    a, b = factors()
    exact = a.double() @ b.double().t()
    seeds, draws = Seeds(3), 400
    found = torch.stack([int8_product(a, b, torch.float32, seeds).double() for _ in range(draws)])
    mean, deviation = found.mean(0), found.std(0)
    scores = (mean - exact) / (deviation / math.sqrt(draws))
    # Of 1536 standard normal numbers: their mean square is 1 +- 0.036, the largest is below 5.
    assert 0.85 < float(scores.square().mean()) < 1.15
    assert float(scores.abs().max()) < 5
    assert abs(float(scores.mean())) < 0.13
    assert float(deviation.min()) > 0


def test_every_product_rounds_anew_and_the_same_seeds_round_the_same() -> None:
    a, b = factors()
    seeds = Seeds(1)
    one, other = (int8_product(a, b, torch.float32, seeds) for _ in range(2))
    again = int8_product(a, b, torch.float32, Seeds(1))
    assert not torch.equal(one, other)
    assert torch.equal(one, again)
    assert Seeds(1, 5).draw() != Seeds(2, 5).draw() != Seeds(2, 6).draw()


@pytest.mark.parametrize("rows", [1, 5, 48])
@pytest.mark.parametrize("terms", [1, 7, 16, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_any_rows_and_any_number_of_terms(rows: int, terms: int, dtype: torch.dtype) -> None:
    a, b = (tensor.to(dtype) for tensor in factors(rows, terms))
    exact = a.double() @ b.double().t()
    size = a.double().norm(dim=1)[:, None] * b.double().norm(dim=1)
    for product, bound in (
        (int8_product(a, b, dtype, Seeds(0)), 0.04),
        (fp8_gradient_product(a, b, dtype), 0.196),
    ):
        assert (dtype, (rows, 32)) == (product.dtype, tuple(product.shape))
        assert float(((product.double() - exact) / size).abs().max()) < bound


def test_strided_factors_are_those_they_show() -> None:
    a, b = factors()
    strided = (a.t().contiguous().t(), torch.cat([b, b], 1)[:, : b.shape[1]])
    assert torch.equal(
        int8_product(a, b, torch.float32, Seeds(0)),
        int8_product(*strided, torch.float32, Seeds(0)),
    )
    assert torch.equal(
        fp8_gradient_product(a, b, torch.float32), fp8_gradient_product(*strided, torch.float32)
    )


def test_more_terms_than_int32_adds_up_are_added_piecewise() -> None:
    terms = products.EXACT_TERMS + 4096
    a, b = torch.ones(2, terms), torch.ones(16, terms)
    # Ones are the largest of their row: every code is 127, and a sum in one piece overflows.
    assert terms * 127 * 127 > 2**31
    found = int8_product(a, b, a.dtype, Seeds(0))
    assert torch.allclose(torch.full((2, 16), float(terms)), found, rtol=1e-6)


@pytest.mark.usefixtures("on_cpu")  # of which the allocator is
def test_a_large_product_takes_its_sums_and_no_more() -> None:
    a = torch.randn(1024, 16)
    peak = peak_of(lambda: int8_product(a, a, torch.bfloat16, Seeds(0)))
    # The codes of both factors and their scales come on top.
    assert products.SUMS * 1024**2 <= peak <= products.SUMS * 1024**2 + 2 * 1024 * (16 + 4) + 4096


def test_no_terms_and_zeros_give_zeros() -> None:
    zeros = torch.zeros(32, 16)
    for product in (
        int8_product(zeros, zeros, zeros.dtype, Seeds(0)),
        fp8_gradient_product(zeros, zeros, zeros.dtype),
    ):
        assert torch.equal(torch.zeros(32, 32), product)
    empty = torch.zeros(32, 0)
    assert torch.equal(torch.zeros(32, 32), int8_product(empty, empty, zeros.dtype, Seeds(0)))


@pytest.mark.parametrize("wrong", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("side", [0, 1])
def test_what_is_not_finite_stays_so(wrong: float, side: int) -> None:
    pair = list(factors())
    pair[side] = pair[side].clone()
    pair[side][3, 5] = wrong
    found = int8_product(*pair, torch.float32, Seeds(0))
    touched = found[3] if side == 0 else found[:, 3]
    assert touched.isnan().all()
    assert int(found.isnan().sum()) == touched.numel()
    assert fp8_gradient_product(*pair, torch.float32).isnan().all()
