"""The iteration: singular values near one, the same vectors; what is together is as if alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from torch import nn

from neaptide_plugins.muon import matrices
from neaptide_plugins.muon.matrices import batches
from neaptide_plugins.muon.newton_schulz import orthogonalised
from neaptide_plugins.muon.optimizer import Muon
from neaptide_plugins.muon.polynomials import POLYNOMIALS, Step, coefficients

pytestmark = pytest.mark.usefixtures("on_device")

sides = st.integers(1, 80)
JORDAN, POLAR = coefficients("jordan", 5), coefficients("polar-express", 4)
THREE = coefficients("polar-express", 3)
ENDS = {
    (JORDAN, "frobenius"): (0.005, 0.68, 1.16),
    (POLAR, "frobenius"): (0.0023, 0.69, 1.31),
    (THREE, "schatten"): (0.0095, 0.69, 1.31),
}
"""By steps and norm: from which quotient on, and where the steps leave it."""
NORMS = ("frobenius", "schatten")


def norm_of(matrix: torch.Tensor, norm: str) -> torch.Tensor:
    power = {"frobenius": 2, "schatten": 8}[norm]
    return torch.linalg.svdvals(matrix).pow(power).sum() ** (1 / power)


def spectrum(rows: int, columns: int, least: float, seed: int) -> torch.Tensor:
    """Return a float64 matrix whose singular values are at least `least` of its norm."""
    generator = torch.Generator(DEVICE).manual_seed(seed)
    left, values, right = torch.linalg.svd(
        torch.randn(rows, columns, generator=generator, dtype=torch.float64), full_matrices=False
    )
    drawn = torch.rand(values.shape, generator=generator, dtype=torch.float64)
    return left @ torch.diag(least * len(values) ** 0.5 + (1 - least) * drawn) @ right


@settings(max_examples=20, deadline=None)
@given(sides, sides, st.integers(0, 1000), st.floats(1e-6, 1e6), st.sampled_from([*ENDS]))
def test_singular_values_end_near_one_and_vectors_stay(
    rows: int, columns: int, seed: int, size: float, way: tuple[tuple[Step, ...], str]
) -> None:
    rows, columns = sorted((rows, columns))
    matrix = size * spectrum(rows, columns, 0.02, seed)
    least, low, high = ENDS[way]
    assert torch.linalg.svdvals(matrix).min() >= least * norm_of(matrix, way[1])

    result = orthogonalised(matrix[None], *way)[0]

    values = torch.linalg.svdvals(result)
    assert low <= values.min()
    assert values.max() <= high
    # The same singular vectors: the product with the transpose is symmetric and positive.
    product = result @ matrix.mT / matrix.norm()
    torch.testing.assert_close(product, product.mT)
    assert torch.linalg.eigvalsh(product).min() > 0


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 120),
    st.integers(1, 40),
    st.floats(0, 6),
    st.builds(coefficients, st.sampled_from(POLYNOMIALS), st.integers(1, 5)),
    st.sampled_from(NORMS),
)
def test_float32_is_float64_up_to_rounding_whatever_the_spectrum(
    rows: int, more: int, rank: int, decades: float, steps: tuple[Step, ...], norm: str
) -> None:
    """Square, oblong (by way of Gram matrices), of little rank, and over many decades."""
    generator = torch.Generator(DEVICE).manual_seed(rows + more)
    rank, columns = min(rank, rows), rows + more
    left, right = (torch.randn(side, rank, generator=generator) for side in (rows, columns))
    matrix = ((left * 10 ** -torch.linspace(0, decades, rank)) @ right.mT).double()

    exact = orthogonalised(matrix[None], steps, norm)
    result = orthogonalised(matrix[None].float(), steps, norm)

    assert (result - exact).norm() <= 3e-3 * exact.norm()


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=12))
def test_together_is_as_one_by_one(shapes: list[tuple[int, int]]) -> None:
    generator = torch.Generator(DEVICE).manual_seed(len(shapes))
    together = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    alone = [nn.Parameter(weight.detach().clone()) for weight in together]
    optimizers = [Muon(together, lr=0.01), *(Muon([weight], lr=0.01) for weight in alone)]
    for weight, twin in zip(together, alone, strict=True):
        weight.grad = torch.randn(weight.shape, generator=generator)
        twin.grad = weight.grad.clone()
    for optimizer in optimizers:
        optimizer.step()

    for weight, twin in zip(together, alone, strict=True):
        torch.testing.assert_close(weight, twin, rtol=1e-4, atol=1e-5)


@settings(max_examples=20, deadline=None)
@given(sides, sides, st.integers(0, 1000), st.floats(1e-3, 1e6))
def test_the_norm_of_schatten_is_nearer_to_the_largest_singular_value(
    rows: int, columns: int, seed: int, size: float
) -> None:
    """Steps that change nothing show what a matrix is divided by."""
    matrix = size * spectrum(*sorted((rows, columns)), 0.02, seed)
    nothing = ((1.0, 0.0, 0.0),)

    result = orthogonalised(matrix[None], nothing, "schatten")[0]

    torch.testing.assert_close(result, matrix / norm_of(matrix, "schatten"))
    largest = torch.linalg.matrix_norm(result, 2)
    assert torch.linalg.matrix_norm(matrix / matrix.norm(), 2) <= largest + 1e-9
    assert largest <= 1 + 1e-9


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("columns", [6, 24])
def test_zeros_stay_and_what_is_nearly_zero_is_not_enlarged_to_one(norm: str, columns: int) -> None:
    zeros, tiny = torch.zeros(6, columns), 1e-12 * torch.randn(6, columns)
    result = orthogonalised(torch.stack([zeros, tiny]), THREE, norm)
    assert not result[0].any()
    assert bool(result[1].isfinite().all())
    assert result[1].norm() < 0.1


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([(4, 8), (8, 4), (4, 8), (4, 4)], [3, 1]),
        ([(64, 80)] * 3, [3]),
        ([(65, 80)] * 3, [1, 1, 1]),
        ([(64, 1 << 17)] * 5, [2, 2, 1]),
        ([(1, 1 << 25)] * 2, [1, 1]),
    ],
    ids=str,
)
def test_what_is_together(shapes: list[tuple[int, int]], sizes: list[int]) -> None:
    found = batches(tuple(map(torch.Size, shapes)), dtype=torch.float32)
    assert sizes == [len(batch.cuts) for batch in found]


def test_in_bfloat16_a_cpu_has_more_together() -> None:
    shapes = (torch.Size((256, 300)),) * 3
    assert [3] == [len(batch.cuts) for batch in batches(shapes, dtype=torch.bfloat16)]
    assert [1] * 2 == [len(one.cuts) for one in batches((torch.Size((257, 300)),) * 2)]


def test_what_has_another_factor_is_another_batch() -> None:
    shapes = torch.Size((4, 8)), torch.Size((8, 4))
    assert [1.0, 2**0.5] == [batch.factor for batch in batches(shapes, scale="original")]


@pytest.mark.parametrize("has_instructions", [True, False])
def test_a_cpu_takes_bfloat16_where_it_is_faster(
    monkeypatch: pytest.MonkeyPatch, *, has_instructions: bool
) -> None:
    monkeypatch.setattr(matrices, "multiplies_bfloat16", lambda: has_instructions)
    batches.cache_clear()
    shapes = torch.Size((96, 200)), torch.Size((95, 200))
    wide = torch.bfloat16 if has_instructions else torch.float32

    on_cpu, on_gpu = batches(shapes), batches(shapes, is_cpu=False)

    batches.cache_clear()
    assert [wide, torch.float32] == [batch.dtype for batch in on_cpu]
    assert [torch.bfloat16] * 2 == [batch.dtype for batch in on_gpu]
