"""Of attention, the output and the logarithms of its sums are kept: a replay does not run it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from checkpointed import attached, differing, trace
from support import DEVICE
from torch import nn

from neaptide_kernels.attention import attention
from neaptide_kernels.registry import KERNELS

WIDTH = 16


class Block(nn.Module):
    """Attention with dropout beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.heads(x).view(*x.shape[:2], 3, 2, 8).permute(2, 0, 3, 1, 4)
        done = attention(query, key, value, causal=True, dropout=0.25)
        return x + done.transpose(1, 2).flatten(-2)


def net() -> nn.Module:
    return nn.Sequential(*[Block() for _ in range(4)])


def loss_of(model: nn.Module, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    return model(torch.randn(2, 6, WIDTH, generator=generator).to(DEVICE)).square().sum()


@pytest.mark.parametrize(("kept", "again"), [((), 4), (("attention",), 0)])
def test_a_replay_takes_what_was_kept(
    kept: tuple[str, ...], again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    run = KERNELS.run
    monkeypatch.setattr(KERNELS, "run", lambda op, given: ran.append(op) or run(op, given))
    model = net()
    attached(model, interval=1, save_ops=kept)
    loss_of(model, 0).backward()
    assert (4 + again, 4) == (ran.count("attention"), ran.count("attention_backward"))


@pytest.mark.parametrize("kept", [(), ("attention",)])
def test_training_is_bitwise_the_same(kept: tuple[str, ...]) -> None:
    segments = partial(attached, interval=1, save_ops=kept)
    assert [] == differing(trace(net, loss_of), trace(net, loss_of, segments=segments))
