"""Rows of a bias that are one large negative number: the softmax is that of the scores."""

from __future__ import annotations

import math

import pytest
import torch
from support import DEVICE

from neaptide_kernels.attention import attention
from neaptide_kernels.attention.call import AttentionCall
from neaptide_kernels.attention.scores import kept
from neaptide_kernels.registry import KERNELS

pytestmark = pytest.mark.usefixtures("on_device")

FILLED = 2
"""The query whose bias is the same number for each key. It is 0, so rounding changes no score."""
N, M = 70, 66
FILLS = [-1e4, -1e9, torch.finfo(torch.float32).min, -math.inf]


def tensors() -> list[torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(1)
    shapes = ((1, 4, N, 8), (1, 2, M, 8), (1, 2, M, 8))
    made = [torch.randn(shape, generator=generator, device="cpu") for shape in shapes]
    made[0][:, :, FILLED] = 0
    return [one.to(DEVICE).requires_grad_() for one in made]


def expected(
    given: list[torch.Tensor], bias: torch.Tensor, softcap: float | None, dropout: float
) -> tuple[torch.Tensor, ...]:
    """Return the output and the gradients of its square in float64, by torch's softmax."""
    exact = [one.detach().double().requires_grad_() for one in given]
    query, key, value = exact
    scores = query @ key.repeat_interleave(2, 1).mT * 8**-0.5
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + bias.double()
    unseeing = (scores == -torch.inf).all(-1, keepdim=True)
    weights = scores.masked_fill(unseeing, 0.0).softmax(-1).masked_fill(unseeing, 0.0)
    if dropout:
        torch.manual_seed(5)
        seed = torch.randint(2**62, (), dtype=torch.int64, device=DEVICE)
        call = AttentionCall(*given, seed=seed, dropout=dropout)
        weights = weights * kept(call, slice(0, N), slice(0, M)) / (1 - dropout)
    output = weights @ value.repeat_interleave(2, 1)
    return (output, *torch.autograd.grad(output.square().sum(), exact))


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("provider", ["auto", "blocks", "reference"])
@pytest.mark.parametrize(("softcap", "dropout"), [(None, 0.0), (1.5, 0.0), (None, 0.3), (1.5, 0.3)])
def test_a_row_of_one_number_has_the_softmax_of_its_scores(
    fill: float, provider: str, softcap: float | None, dropout: float
) -> None:
    given = tensors()
    bias = torch.linspace(-1, 1, M, device=DEVICE).repeat(N, 1)
    bias[FILLED] = fill
    named = {} if provider == "auto" else {"attention": provider, "attention_backward": provider}
    with KERNELS.using(**named):
        torch.manual_seed(5)
        output = attention(*given, bias=bias, softcap=softcap, dropout=dropout)
        found = (output, *torch.autograd.grad(output.square().sum(), given))
    for right, got in zip(expected(given, bias, softcap, dropout), found, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-5)
    if not dropout and fill > -math.inf:
        mean = given[2].mean(2).repeat_interleave(2, 1)
        torch.testing.assert_close(output[:, :, FILLED], mean)
