"""The random projections of APOLLO: normal, of counters, and true to lengths."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from neaptide_plugins.apollo.projection import (
    gaussian,
    projected,
    projected_shape,
    rank_of,
    tall,
)

pytestmark = pytest.mark.usefixtures("on_device")


def like() -> torch.Tensor:
    return torch.zeros((), dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1, 2**62 + 5])
def test_the_numbers_are_standard_normal(seed: int) -> None:
    count = 1 << 18
    found = gaussian(seed, count, like())
    deviation = 1 / math.sqrt(count)
    moments = [float(found.pow(power).mean()) for power in range(1, 5)]
    # Of a normal number, the powers 1 to 4 have these means and standard deviations.
    for moment, (mean, spread) in zip(moments, [(0, 1), (1, 2), (0, 15), (3, 96)], strict=True):
        assert moment == pytest.approx(mean, abs=5 * math.sqrt(spread) * deviation)
    for sigmas in (0.5, 1.0, 2.0, 3.0):
        inside = float((found.abs() < sigmas).double().mean())
        assert inside == pytest.approx(math.erf(sigmas / math.sqrt(2)), abs=5 * deviation / 2)
    neighbours = float((found[1:] * found[:-1]).mean())
    halves = float((found[: count // 2] * found[count // 2 :]).mean())
    assert abs(neighbours) < 5 * deviation
    assert abs(halves) < 5 * math.sqrt(2) * deviation


@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_there_are_as_many_as_wanted(count: int) -> None:
    found = gaussian(3, count, torch.zeros((), dtype=torch.float32))
    assert (count,) == found.shape
    assert torch.float32 == found.dtype
    assert bool(found.isfinite().all())


def test_numbers_of_different_seeds_are_independent() -> None:
    count = 1 << 16
    rows = torch.stack([gaussian(seed, count, like()) for seed in (0, 1, 2, 1 << 32, 1 << 60)])
    products = rows @ rows.T / count
    products.fill_diagonal_(0)
    assert float(products.abs().max()) < 5 / math.sqrt(count)


def test_a_projection_keeps_squared_lengths_on_average() -> None:
    (vector, rank) = gaussian(1, 40, like()), 8
    column = vector[:, None].expand(40, 41)
    lengths = [
        float(projected(column, rank, seed)[:, 0].square().sum() / vector.square().sum())
        for seed in range(400)
    ]
    # The sum of squares of 8 normal numbers, over 8: mean 1 and variance 2 / 8.
    assert sum(lengths) / 400 == pytest.approx(1.0, abs=5 * math.sqrt(2 / rank / 400))


def test_the_smaller_side_is_projected_by_one_and_the_same_matrix() -> None:
    wide = gaussian(5, 6 * 9, like()).view(6, 9)
    eye = torch.eye(6, dtype=torch.float64)
    draw = projected(eye, 4, 2).T  # a square matrix is tall: the rows of `eye @ P^T`
    torch.testing.assert_close(draw @ wide, projected(wide, 4, 2))
    torch.testing.assert_close(wide.T @ draw.T, projected(wide.T, 4, 2))
    for matrix in (wide, wide.T, eye):
        assert projected_shape(matrix.shape, 4) == list(projected(matrix, 4, 2).shape)


@pytest.mark.parametrize(
    ("shape", "rank", "expected"),
    [
        ((64, 32), 0, 8),
        ((32, 64), 0, 8),
        ((4096, 4096), 0, 256),
        ((1024, 4096), 0, 256),
        ((3, 64), 0, 1),
        ((1, 64), 0, None),
        ((0, 64), 0, None),
        ((64, 32), 31, 31),
        ((64, 32), 32, None),
        ((64, 32), 1, 1),
        ((64,), 1, None),
        ((), 1, None),
        ((8, 8, 8), 1, None),
    ],
    ids=str,
)
def test_the_rank_is_less_than_the_smaller_side(
    shape: tuple[int, ...], rank: int, expected: int | None
) -> None:
    assert expected == rank_of(shape, rank)


def test_a_square_matrix_counts_as_tall() -> None:
    sides = list(itertools.product((2, 3), repeat=2))
    assert [(2, 2), (3, 2), (3, 3)] == [shape for shape in sides if tall(shape)]
