"""AdEMAMix as a torch optimizer: the paper's algorithm, AdamW without it, state, refusals."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from stepped_alone import gradient, same, train, weights
from torch import nn

from neaptide_plugins.ademamix.optimizer import AdEMAMix
from neaptide_plugins.ademamix.warmups import alpha_at, slow_decay_at

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.usefixtures("on_device")

SHAPES = [(4, 3), (5,), ()]


def as_in_the_paper(
    weight: torch.Tensor,
    steps: int,
    lr: float,
    betas: tuple[float, float, float],
    alpha: float,
    warmup: int,
    eps: float,
    decay: float,
) -> torch.Tensor:
    """Return the weight after algorithm 1, line by line."""
    beta1, beta2, beta3 = betas
    m1, m2, nu = torch.zeros(3, *weight.shape, dtype=weight.dtype)
    for t in range(1, steps + 1):
        g = gradient(t - 1, weight)
        beta3_t, alpha_t = beta3, alpha
        if warmup:
            mixed = (1 - t / warmup) * math.log(beta3) + t / warmup * math.log(beta1)
            if t < warmup:
                beta3_t = min(math.exp(math.log(beta1) * math.log(beta3) / mixed), beta3)
            alpha_t = min(t * alpha / warmup, alpha)
        m1 = beta1 * m1 + (1 - beta1) * g
        m2 = beta3_t * m2 + (1 - beta3_t) * g
        nu = beta2 * nu + (1 - beta2) * g * g
        m1_hat, nu_hat = m1 / (1 - beta1**t), nu / (1 - beta2**t)
        weight = weight - lr * ((m1_hat + alpha_t * m2) / (nu_hat.sqrt() + eps) + decay * weight)
    return weight


@pytest.mark.parametrize("warmup", [0, 7, 100])
@pytest.mark.parametrize("betas", [(0.9, 0.999, 0.9999), (0.5, 0.9, 0.8)], ids=str)
def test_it_is_the_algorithm_of_the_paper(betas: tuple[float, float, float], warmup: int) -> None:
    params = weights(SHAPES, dtype=torch.float64)
    arguments = (0.01, betas, 3.0, warmup, 1e-6, 0.2)
    expected = [as_in_the_paper(each.detach(), 20, *arguments) for each in params]
    train(
        AdEMAMix(
            params, lr=0.01, betas=betas, alpha=3.0, warmup_steps=warmup, eps=1e-6, weight_decay=0.2
        ),
        20,
    )

    for reference, param in zip(expected, params, strict=True):
        torch.testing.assert_close(param.detach(), reference, rtol=1e-12, atol=1e-12)


def test_without_the_slow_average_it_is_adamw() -> None:
    ours, theirs = weights(SHAPES), weights(SHAPES)
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.2}
    train(AdEMAMix(ours, alpha=0.0, **options), 20)
    train(torch.optim.AdamW(theirs, **options), 20)

    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@given(st.floats(0, 0.99), st.floats(0, 0.99999), st.integers(1, 10_000))
def test_a_warmup_rises_from_the_fast_decay_to_the_slow(
    fast: float, slow: float, warmup: int
) -> None:
    steps = [1, warmup // 3, warmup // 2, warmup, warmup + 1, 10 * warmup]
    decays = [slow_decay_at(step, fast, slow, warmup) for step in sorted(steps)]
    alphas = [alpha_at(step, 2.0, warmup) for step in sorted(steps)]

    assert alphas == sorted(alphas)
    assert 2.0 == alphas[-1] == alpha_at(warmup, 2.0, warmup)
    assert all(min(fast, slow) <= decay * (1 + 1e-12) for decay in decays)
    assert all(earlier <= later * (1 + 1e-12) for earlier, later in pairwise(decays))
    assert math.isclose(slow, decays[-1], rel_tol=1e-12)
    assert math.isclose(slow, slow_decay_at(1, fast, slow, 0), rel_tol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_state_is_of_the_weights_dtype_and_goes_on_bit_for_bit(dtype: torch.dtype) -> None:
    whole = weights(SHAPES, dtype=dtype)
    optimizer = AdEMAMix(whole, lr=0.01, warmup_steps=5)
    train(optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict())
    kept = [nn.Parameter(weight.detach().clone()) for weight in whole]
    train(optimizer, 4, first=3)

    again = AdEMAMix(kept)
    again.load_state_dict(saved)
    train(again, 4, first=3)

    assert same(whole, kept)
    (state, *_) = again.state.values()
    assert [dtype] * 3 == [value.dtype for name, value in state.items() if name != "step"]


def test_one_that_joins_later_has_a_count_of_its_own() -> None:
    early, late = weights([(3, 3), (3, 3)])
    (alone,) = weights([(3, 3)])
    alone.data.copy_(late.data)
    optimizer = AdEMAMix([early, late], warmup_steps=4)
    late.requires_grad_(False)
    train(optimizer, 3)
    assert not optimizer.state.get(late)
    late.requires_grad_(True)
    train(optimizer, 2)
    train(AdEMAMix([alone], warmup_steps=4), 2)

    assert torch.equal(alone, late)
    assert [5, 2] == [int(optimizer.state[each]["step"]) for each in (early, late)]


def test_large_weights_are_updated_apart_with_the_same_result() -> None:
    shapes = [(3 << 20,), (3 << 20,), (5,)]
    together = weights(shapes)
    alone = [nn.Parameter(weight.detach().clone()) for weight in together]
    optimizers = [AdEMAMix(together), *(AdEMAMix([weight]) for weight in alone)]
    for optimizer in optimizers:
        train(optimizer, 1)

    assert same(together, alone)


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has no sparse tensors
def test_what_cannot_be_updated_is_refused_in_one_line() -> None:
    def refused(act: Callable[[], Any]) -> str:
        with pytest.raises(ValueError, match="AdEMAMix") as caught:
            act()
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (plain,) = weights([(4,)])
    optimizer = AdEMAMix([plain])
    sparse = nn.Embedding(4, 4, sparse=True)
    sparse(torch.tensor([1])).sum().backward()

    assert "dense gradients" in refused(lambda: AdEMAMix(sparse.parameters()).step())
    assert "lr is out of range (got -1.0)" in refused(lambda: AdEMAMix([plain], lr=-1.0))
    assert "betas is out" in refused(lambda: AdEMAMix([plain], betas=(0.9, 0.99, 1.0)))
    assert "betas is out" in refused(lambda: AdEMAMix([plain], betas=(0.9, 0.99)))  # type: ignore[arg-type]  # as a user may
    assert "no real floating dtype" in refused(
        lambda: optimizer.add_param_group({"params": weights([(2,)], dtype=torch.cfloat)})
    )
    assert 1 == len(optimizer.param_groups)
