"""The iteration: singular values near one, the same vectors; what is together is as if alone."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import DEVICE
from torch import nn

from neaptide_plugins.muon.matrices import Piece, batches
from neaptide_plugins.muon.newton_schulz import orthogonalised
from neaptide_plugins.muon.optimizer import Muon
from neaptide_plugins.muon.polynomials import POLYNOMIALS, Step, coefficients

pytestmark = pytest.mark.usefixtures("on_device")

sides = st.integers(1, 80)
JORDAN, POLAR = coefficients("jordan", 5), coefficients("polar-express", 4)
ENDS = {JORDAN: (0.005, 0.68, 1.16), POLAR: (0.0023, 0.69, 1.31)}
"""By steps: from which singular value on, and where the steps leave it."""


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
    rows: int, columns: int, seed: int, size: float, steps: tuple[Step, ...]
) -> None:
    rows, columns = sorted((rows, columns))
    matrix = size * spectrum(rows, columns, 0.02, seed)
    least, low, high = ENDS[steps]
    assert torch.linalg.svdvals(matrix).min() >= least * matrix.norm()

    result = orthogonalised(matrix[None], steps)[0]

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
)
def test_float32_is_float64_up_to_rounding_whatever_the_spectrum(
    rows: int, more: int, rank: int, decades: float, steps: tuple[Step, ...]
) -> None:
    """Square, oblong (by way of Gram matrices), of little rank, and over many decades."""
    generator = torch.Generator(DEVICE).manual_seed(rows + more)
    rank, columns = min(rank, rows), rows + more
    left, right = (torch.randn(side, rank, generator=generator) for side in (rows, columns))
    matrix = ((left * 10 ** -torch.linspace(0, decades, rank)) @ right.mT).double()

    exact = orthogonalised(matrix[None], steps)
    result = orthogonalised(matrix[None].float(), steps)

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


def piece(rows: int, columns: int, steps: tuple[Step, ...] = POLAR) -> Piece:
    weight = torch.zeros(rows, columns, device="cpu")  # where large ones are alone
    return Piece(weight, weight, weight, 1.0, 0.1, steps, torch.float32)


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
    assert sizes == [len(batch) for batch in batches(piece(*shape) for shape in shapes)]


def test_other_steps_are_another_batch() -> None:
    assert [1, 1] == [len(batch) for batch in batches([piece(4, 4), piece(4, 4, JORDAN)])]
