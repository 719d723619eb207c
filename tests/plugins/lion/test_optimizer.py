"""Lion as a torch optimizer: the paper's algorithm, its state, batches of weights, refusals."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stepped_alone import gradient, same, train, weights
from torch import nn

from neaptide_plugins.lion.optimizer import Lion

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")


def as_in_the_paper(
    weight: torch.Tensor, steps: int, lr: float, betas: tuple[float, float], decay: float
) -> torch.Tensor:
    """Return the weight after algorithm 2, line by line."""
    beta1, beta2 = betas
    m = torch.zeros_like(weight)
    for t in range(steps):
        g = gradient(t, weight)
        c = beta1 * m + (1 - beta1) * g
        weight = weight - lr * (torch.sign(c) + decay * weight)
        m = beta2 * m + (1 - beta2) * g
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.2, 0.4), (0.0, 0.0)], ids=str)
def test_it_is_the_algorithm_of_the_paper_over_a_thousand_updates(
    betas: tuple[float, float], decay: float
) -> None:
    params = weights(dtype=torch.float64)
    expected = [as_in_the_paper(each.detach(), 1000, 0.01, betas, decay) for each in params]
    train(Lion(params, lr=0.01, betas=betas, weight_decay=decay), 1000)

    for reference, param in zip(expected, params, strict=True):
        torch.testing.assert_close(param.detach(), reference, rtol=1e-11, atol=1e-11)


def test_an_element_without_a_gradient_only_decays() -> None:
    (param,) = weights([(4,)], dtype=torch.float64)
    before = param.detach().clone()
    param.grad = torch.zeros_like(param)
    Lion([param], lr=0.1, weight_decay=0.5).step()

    assert torch.equal(before * (1 - 0.1 * 0.5), param.detach())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_state_is_of_the_weights_dtype_and_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    whole = weights(dtype=dtype)
    optimizer = Lion(whole, lr=0.01, weight_decay=0.1)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [nn.Parameter(weight.detach().clone()) for weight in whole]
    train(optimizer, 4, first=3)

    again = Lion(kept)
    again.load_state_dict(saved)
    train(again, 4, first=3)

    assert same(whole, kept)
    for param in kept:
        (first, step), (second, momentum) = sorted(again.state[param].items(), reverse=True)
        assert ("step", "exp_avg") == (first, second)
        assert (7.0, dtype, param.shape) == (float(step), momentum.dtype, momentum.shape)


def test_large_weights_are_updated_apart_with_the_same_result() -> None:
    shapes = [(3 << 20,), (3 << 20,), (5,)]
    together = weights(shapes)
    alone = [nn.Parameter(weight.detach().clone()) for weight in together]
    for optimizer in [Lion(together), *(Lion([weight]) for weight in alone)]:
        train(optimizer, 2)

    assert same(together, alone)


def test_a_closure_is_evaluated_with_gradients() -> None:
    (param,) = weights([(4,)])
    optimizer = Lion([param], lr=0.1)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = param.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) > param.square().sum()


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="Lion") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (plain,) = weights([(4,)])
    optimizer = Lion([plain])
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()

    assert "dense gradients" in refused(lambda: Lion(sparse.parameters()).step())
    assert "lr is out of range (got -1.0)" in refused(lambda: Lion([plain], lr=-1.0))
    assert "lr is out of range (got nan)" in refused(lambda: Lion([plain], lr=float("nan")))
    assert "betas is out of range (got (0.9, 1.0))" in refused(
        lambda: Lion([plain], betas=(0.9, 1.0))
    )
    assert "betas is out" in refused(lambda: Lion([plain], betas=(0.9,)))  # type: ignore[arg-type]  # as a user may
    assert "weight_decay is out" in refused(lambda: Lion([plain], weight_decay=-0.1))
    assert "no real floating dtype" in refused(
        lambda: optimizer.add_param_group({"params": weights([(2,)], dtype=torch.cfloat)})
    )
    assert 1 == len(optimizer.param_groups)
