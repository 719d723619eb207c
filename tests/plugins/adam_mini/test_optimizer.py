"""Adam-mini as a torch optimizer: the paper's algorithm, its state, refusals."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stepped_alone import gradient, same, train, weights
from torch import nn

from neaptide_plugins.adam_mini.optimizer import AdamMini

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")


def as_in_the_paper(
    weight: torch.Tensor, steps: int, lr: float, betas: tuple[float, float], decay: float
) -> torch.Tensor:
    """Return the weight after algorithm 1, line by line, block by block."""
    beta1, beta2 = betas
    rows = weight if weight.dim() > 1 else weight[None]
    m, v = torch.zeros_like(weight), [0.0] * len(rows)
    for t in range(1, steps + 1):
        g = gradient(t - 1, weight)
        m = (1 - beta1) * g + beta1 * m
        weight = weight - lr * decay * weight
        means, gradients = (each if weight.dim() > 1 else each[None] for each in (m, g))
        changes = []
        for b, (mean, block) in enumerate(zip(means, gradients, strict=True)):
            if block.numel():
                v[b] = (1 - beta2) * float((block * block).mean()) + beta2 * v[b]
            v_hat = v[b] / (1 - beta2**t)
            changes.append(mean / (1 - beta1**t) / (v_hat**0.5 + 1e-8))
        if changes:
            weight = weight - lr * torch.stack(changes).view(weight.shape)
    return weight


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.2, 0.4), (0.0, 0.0)], ids=str)
def test_it_is_the_algorithm_of_the_paper_over_a_thousand_updates(
    betas: tuple[float, float], decay: float
) -> None:
    params = weights(dtype=torch.float64)
    expected = [as_in_the_paper(each.detach(), 1000, 0.01, betas, decay) for each in params]
    train(AdamMini(params, lr=0.01, betas=betas, weight_decay=decay), 1000)

    for reference, param in zip(expected, params, strict=True):
        torch.testing.assert_close(param.detach(), reference, rtol=1e-9, atol=1e-9)


def test_rows_of_one_element_are_those_of_adamw() -> None:
    (ours,), (theirs,) = weights([(7, 1)]), weights([(7, 1)])
    train(AdamMini([ours], lr=0.01, weight_decay=0.1), 50)
    train(torch.optim.AdamW([theirs], lr=0.01, weight_decay=0.1), 50)

    torch.testing.assert_close(ours.detach(), theirs.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_state_is_of_the_weights_dtype_and_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    whole = weights(dtype=dtype)
    optimizer = AdamMini(whole, lr=0.01, weight_decay=0.1)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [nn.Parameter(weight.detach().clone()) for weight in whole]
    train(optimizer, 4, first=3)

    again = AdamMini(kept)
    again.load_state_dict(saved)
    train(again, 4, first=3)

    assert same(whole, kept)
    for param in kept:
        state = again.state[param]
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        rows = [len(param), *[1] * (param.dim() - 1)] if param.dim() > 1 else [1] * param.dim()
        assert (dtype, wide) == (state["exp_avg"].dtype, state["exp_avg_sq"].dtype)
        assert rows == list(state["exp_avg_sq"].shape)


def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="AdamMini") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (plain,) = weights([(4, 2)])
    assert "lr is out of range (got -1.0)" in refused(lambda: AdamMini([plain], lr=-1.0))
    assert "eps is out of range (got 0.0)" in refused(lambda: AdamMini([plain], eps=0.0))
    assert "betas is out" in refused(lambda: AdamMini([plain], betas=(0.9, 1.0)))
    assert "weight_decay is out" in refused(lambda: AdamMini([plain], weight_decay=-0.1))

    optimizer = AdamMini([plain])
    train(optimizer, 1)
    saved = optimizer.state_dict()
    (wider,) = weights([(5, 2)])
    assert (
        "'exp_avg' of parameter 0 is [4, 2] in the state; AdamMini needs [5, 2]; load"
        in refused(lambda: AdamMini([wider]).load_state_dict(saved))
    )
    of_torch = torch.optim.SGD([plain], momentum=0.9)
    train(of_torch, 1)
    assert "has momentum_buffer, but AdamMini needs exp_avg, exp_avg_sq, step; load" in refused(
        lambda: AdamMini([plain]).load_state_dict(of_torch.state_dict())
    )
