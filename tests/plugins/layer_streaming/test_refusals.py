"""What cannot stream is refused in a line, before a weight is moved."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import DEVICE, tiny_trainer
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.testing.tiny import tiny_task


class Weird(torch.optim.SGD):
    """A user's own class, which may do anything."""


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"blocks": "layers.*"}, r"no module name matches 'layers\.\*'"),
    ({"exclude": ["blocks.9"]}, r"no module name matches 'blocks\.9'"),
    ({"resident": -1}, "must be >= 0 or 'auto'"),
    ({"phases": ["fool"]}, "fool"),
    ({"resident": 5}, r"'resident' must be at most the 4 blocks there are \(got 5\)"),
    (
        {"micro_batches": 2},
        r"'blocks\.0\.norm' is a BatchNorm1d, .* micro_batches = 1, .* exclude 'blocks\.0'",
    ),
    ({"prefetch_distance": 2}, "must be less than max_active_layers = 2"),
    ({"clip": "lagged"}, "must be 'global' with update = 'after_backward'"),
    ({"optimizer_on": "cpu", "update": "in_backward"}, "must be 'auto' or 'device'"),
    ({"optimizer_on": "cpu", "master": "split"}, "with master = 'split'"),
    ({"mode": "graph", "micro_batches": 2}, "must be 1 with mode = 'graph'"),
    ({"mode": "graph", "inputs": "host"}, "must be 'device' with mode = 'graph'"),
    ({"mode": "graph", "update": "in_backward"}, "must be 'after_backward' with mode = 'graph'"),
    ({"max_active_layers": 0}, r"must be >= 1"),
    ({"host_gib": 0}, r"must be > 0"),
]


@pytest.mark.parametrize(("settings", "message"), REFUSED)
def test_it_is_a_line_with_the_way_out(settings: dict[str, Any], message: str) -> None:
    task = tiny_task()
    before = {name: p.data_ptr() for name, p in task.model.named_parameters()}
    with pytest.raises(ConfigError, match=message) as refused:
        HybridTrainer(task.model, task.optimizer, config={"plugins": {"layer-streaming": settings}})
    assert "\n" not in str(refused.value)
    assert "@ plugins.layer-streaming" in str(refused.value)
    assert before == {name: p.data_ptr() for name, p in task.model.named_parameters()}
    assert not any("forward" in vars(module) for module in task.model.modules())


@pytest.mark.parametrize(
    "settings", [{"optimizer_on": "device"}, {"update": "in_backward"}, {"master": "split"}]
)
def test_an_optimizer_that_cannot_be_streamed(settings: dict[str, Any]) -> None:
    task = tiny_task()
    optimizer = Weird([p for p in task.model.parameters() if p.requires_grad], lr=0.1)
    config = {"plugins": {"layer-streaming": settings}}
    with pytest.raises(ConfigError, match=r"is none of torch\.optim's .*set optimizer_on = 'cpu'"):
        HybridTrainer(task.model, optimizer, config=config)


@pytest.mark.parametrize("clip", ["global", "none"])
def test_a_clipping_that_cannot_be_made_inside_the_backward(clip: str) -> None:
    config = {
        "train": {"clip_norm": 1.0},
        "plugins": {"layer-streaming": {"update": "in_backward", "clip": clip}},
    }
    with pytest.raises(ConfigError, match=f"clip = '{clip}'"):
        tiny_trainer(config)


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_cuda_graphs_are_refused_for_a_block_and_for_a_compiled_one() -> None:
    for how in ("method", "wrapper"):
        blocks = [Plain() for _ in range(3)]
        if how == "method":
            blocks[1].compile(mode="reduce-overhead")
            model = nn.Sequential(*blocks)
        else:
            compiled = [torch.compile(block, mode="reduce-overhead") for block in blocks]
            model = nn.Sequential(*compiled)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"plugins": {"layer-streaming": {}}}
        with pytest.raises(ConfigError, match="compiled with CUDA graphs"):
            HybridTrainer(model, optimizer, config=config)


@pytest.mark.filterwarnings("ignore")  # torch's own
def test_what_compiles_without_them_is_not() -> None:
    blocks = [Plain() for _ in range(3)]
    blocks[1].compile(mode="default", backend="eager")
    model = nn.Sequential(*blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": {"layer-streaming": {}}}
    with HybridTrainer(
        model, optimizer, loss_fn=lambda net, x: net(x).square().mean(), config=config
    ) as trainer:
        assert trainer.step(torch.ones(2, 4, device=DEVICE)).loss > 0


def test_tied_blocks_need_as_many_slots_as_are_used_together() -> None:
    config = {"plugins": {"layer-streaming": {"max_active_layers": 1, "prefetch_distance": 0}}}
    model = nn.Sequential(*[Plain() for _ in range(3)])
    model[2].layer.weight = model[0].layer.weight
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match=r"max_active_layers must be at least 2 .*'2'"):
        HybridTrainer(model, optimizer, config=config)
