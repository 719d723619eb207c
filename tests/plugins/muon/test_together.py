"""Matrices of a batch have the bits that each has alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import DEVICE

from neaptide_plugins.muon import together
from neaptide_plugins.muon.newton_schulz import orthogonalised
from neaptide_plugins.muon.polynomials import Step, coefficients
from neaptide_plugins.muon.together import orthogonalised_together

if TYPE_CHECKING:
    from collections.abc import Iterator

STEPS = coefficients("polar-express", 3)


def drawn(count: int, rows: int, columns: int, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(rows * columns)
    shape = count, rows, columns
    return [*torch.randn(shape, generator=generator, device="cpu").to(DEVICE, dtype)]


@given(
    count=st.integers(1, 9),
    rows=st.integers(1, 70),
    columns=st.integers(1, 200),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    norm=st.sampled_from(["frobenius", "schatten"]),
)
def test_a_matrix_has_the_same_bits_whatever_is_beside_it(
    count: int, rows: int, columns: int, dtype: torch.dtype, norm: str
) -> None:
    matrices = drawn(count, rows, columns, dtype)
    alone = [orthogonalised_together([matrix], STEPS, norm)[0] for matrix in matrices]
    assert all(map(torch.equal, alone, orthogonalised_together(matrices, STEPS, norm)))


@pytest.fixture
def _new_trials() -> Iterator[None]:
    together._is_exact.cache_clear()
    yield
    together._is_exact.cache_clear()


@pytest.mark.usefixtures("_new_trials")
def test_where_a_batch_has_other_bits_matrices_are_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def other_in_a_batch(x: torch.Tensor, steps: tuple[Step, ...], norm: str) -> torch.Tensor:
        return orthogonalised(x, steps, norm) * (1 if len(x) == 1 else 1 + 2**-20)

    matrices = drawn(3, 8, 12, torch.float32)
    expected = [orthogonalised(matrix.unsqueeze(0), STEPS)[0] for matrix in matrices]
    monkeypatch.setattr(together, "orthogonalised", other_in_a_batch)

    assert all(map(torch.equal, expected, orthogonalised_together(matrices, STEPS)))
