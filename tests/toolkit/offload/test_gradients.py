"""Gradients are scaled to the bits of torch's own product, many small ones together."""

from __future__ import annotations

import pytest
import torch
from support import DEVICE

from neaptide_toolkit.offload.gradients import norm_of_all, scale_all

SHAPES = ((3, 5), (7,), (64, 64), (0,), ())


def drawn(*, exponent: int, large: bool) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(exponent + 50)
    shapes = (*SHAPES, (300, 300)) if large else SHAPES
    found = [torch.randn(shape, generator=random) * 10.0**exponent for shape in shapes]
    return [each.to(DEVICE) for each in [*found, torch.randn(5, 3, generator=random).t()]]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("factor", [0.25, 1 / 3, 1.1, torch.tensor(1 / 7), torch.tensor(3)])
def test_scaled_gradients_have_the_bits_of_the_product(
    factor: float | torch.Tensor,
    large: bool,  # noqa: FBT001 - a case
) -> None:
    exact = torch.as_tensor(factor, dtype=torch.float64).to(torch.float32).to(DEVICE)
    for exponent in (-40, -20, 0, 20):
        gradients = drawn(exponent=exponent, large=large)
        wanted = [each * exact for each in gradients]
        scale_all(gradients, factor)
        assert all(map(torch.equal, wanted, gradients))


def test_inf_and_nan_stay_where_they_are() -> None:
    gradients = [torch.tensor([1.0, torch.inf, torch.nan, -torch.inf]).to(DEVICE)]
    scale_all(gradients, 0.5)
    assert "[0.5, inf, nan, -inf]" == str(gradients[0].tolist())


def test_sparse_and_16_bit_gradients_are_scaled_beside_small_ones() -> None:
    # The simulated device has no sparse tensors.
    sparse = torch.sparse_coo_tensor([[0, 2]], [4.0, 8.0], (3,), check_invariants=True)
    half = torch.full((4,), 3.0, dtype=torch.bfloat16).to(DEVICE)
    scale_all([sparse, half], 0.5)
    assert [[2.0, 0.0, 4.0], [1.5] * 4] == [sparse.to_dense().tolist(), half.tolist()]


def test_the_norm_is_that_of_torch() -> None:
    gradients = drawn(exponent=0, large=True)
    assert torch.equal(torch.nn.utils.get_total_norm(gradients), norm_of_all(gradients))
    assert 0.0 == norm_of_all([]).item()
