"""A block that is much larger than others is told of, with patterns of smaller ones."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import DoesNotFitError, HybridTrainer
from neaptide_plugins.layer_streaming.weights.uneven import large_block
from neaptide_toolkit.recompute import find_blocks


class Stage(nn.Module):
    def __init__(self, width: int, layers: int, lists: str = "layers") -> None:
        super().__init__()
        self.lists = lists
        setattr(self, lists, nn.ModuleList(nn.Linear(width, width) for _ in range(layers)))
        self.out = nn.Linear(width, 2 * width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in getattr(self, self.lists):
            x = layer(x).relu()
        return self.out(x)


class Staged(nn.Module):
    def __init__(self, layers: int = 4) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(4 * 2**place, layers) for place in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.stages:
            x = stage(x)
        return x.square().mean()


HINT = (
    "block 'stages.2' has 75% of the weights of all blocks, and each slot is as large; "
    "for smaller blocks set blocks = ['**.layers.*']"
)


def told(model: nn.Module, pattern: Any = None) -> str | None:
    return large_block(find_blocks(model, pattern))


def test_the_largest_stage_is_named_with_what_is_repeated_in_it() -> None:
    assert HINT == told(Staged())
    assert told(Staged(), ["**.layers.*"]) is None


def test_a_large_part_is_searched_too_and_a_container_of_its_own_is_not_named() -> None:
    halves = nn.ModuleList([Stage(4, 1), nn.Module()])
    deep = nn.Module()
    deep.forward = lambda x: x  # type: ignore[method-assign]
    deep.halves = nn.ModuleList([Stage(8, 3, "inner"), Stage(8, 3, "inner")])
    halves[1] = deep
    small = nn.ModuleList([Stage(2, 1), Stage(2, 1)])
    model = nn.ModuleDict({"a": halves, "b": small})
    blocks = [("deep", deep), *find_blocks(model.b)]
    found = large_block(blocks)
    assert found is not None
    assert found.endswith("set blocks = ['**.inner.*']")
    plain = [("0", nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))), ("1", nn.Linear(1, 1))]
    assert large_block(plain) is None


def test_equal_blocks_and_a_stage_without_lists_are_no_matter() -> None:
    assert told(nn.Sequential(*(nn.Linear(4, 4) for _ in range(2)))) is None
    assert told(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 40))) is None
    assert large_block([]) is None


def test_a_run_warns_and_a_shortage_says_so(caplog: pytest.LogCaptureFixture) -> None:
    def trainer(**settings: Any) -> HybridTrainer:
        model = Staged().to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"plugins": {"layer-streaming": settings}}
        return HybridTrainer(model, optimizer, loss_fn=lambda net, x: net(x), config=config)

    with caplog.at_level(logging.WARNING, "neaptide"), trainer() as made:
        made.step(torch.ones(2, 4, device=DEVICE))
    assert [f"streaming.large_block hint={HINT}"] == [one.message for one in caplog.records]
    with pytest.raises(DoesNotFitError) as caught:
        trainer(host_gib=1e-9)
    assert str(caught.value).endswith(f"; {HINT} @ plugins.layer-streaming")
