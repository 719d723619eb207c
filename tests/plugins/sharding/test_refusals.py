"""What several processes cannot train, or cannot divide, is refused before the first step."""

from __future__ import annotations

from copy import deepcopy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.sharding.config import ShardingConfig
from neaptide_plugins.sharding.refusals import check, check_stage
from neaptide_plugins.sharding.state_parts import StateParts

if TYPE_CHECKING:
    from neaptide_plugins.sharding.config import Stage


class Scaled(nn.Module):
    """Blocks, and what a case adds to them."""

    def __init__(self, case: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        if case == "number":
            self.scale = nn.Parameter(torch.ones(()))
        elif case == "shared":
            self.blocks[1].weight = self.blocks[0].weight
        elif case == "outside":
            self.head = nn.Linear(4, 4)
            self.head.weight = self.blocks[0].weight
        elif case == "dtypes":
            self.blocks[0].bias = nn.Parameter(torch.zeros(4, dtype=torch.bfloat16))
        elif case == "max_norm":
            self.blocks.append(nn.Embedding(4, 4, max_norm=1.0))
        elif case == "transposed":
            self.blocks[0].weight = nn.Parameter(torch.zeros(4, 4).t()[:, ::2])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch


class Whole(torch.optim.AdamW):
    """Whether it updates each value by itself is not known."""


class ByElement(Whole):
    elementwise = True


@pytest.mark.parametrize(
    ("case", "stage", "told"),
    [
        ("number", 1, "the weight 'scale' has no dimension to divide"),
        ("number", 3, "the weight 'scale' has no dimension to divide"),
        ("shared", 3, "'blocks.1' shares a weight with 'blocks.0'"),
        ("outside", 2, "'head' shares|'the model' shares a weight with 'blocks.0'"),
        ("dtypes", 3, "'blocks.0' has weights of several dtypes"),
        ("transposed", 3, "the weight 'blocks.0.weight' is not contiguous"),
        ("max_norm", 3, "'blocks.2' changes its weight in a forward"),
        ("", 3, ""),
        ("shared", 1, ""),
        ("dtypes", 1, ""),
        ("transposed", 1, ""),
    ],
)
def test_a_model_that_cannot_be_divided_is_refused_in_one_line(
    case: str, stage: Stage, told: str
) -> None:
    model = Scaled(case).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    with HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch)) as trainer:
        run = trainer._session.run
        if not told:
            check_stage(run, model, optimizer, ShardingConfig(stage=stage))
            return
        with pytest.raises(ConfigError, match=told) as caught:
            check_stage(run, model, optimizer, ShardingConfig(stage=stage))
    assert 1 == len(str(caught.value).splitlines())
    assert 'set stage = "replicate"' in str(caught.value)


@pytest.mark.parametrize(
    ("fused", "case", "refused"),
    [
        (True, "transposed", True),
        (False, "transposed", False),
        (True, "", False),
    ],
)
def test_a_fused_step_takes_no_rows_that_are_apart_in_memory(
    *, fused: bool, case: str, refused: bool
) -> None:
    model = Scaled(case).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused)
    with HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch)) as trainer:
        run, own = trainer._session.run, ShardingConfig(stage=1)
        if not refused:
            check_stage(run, model, optimizer, own)
            return
        with pytest.raises(ConfigError, match=r"rows of the weight .* are not together"):
            check_stage(run, model, optimizer, own)


def test_loaded_rows_of_state_have_the_strides_of_the_weights_rows() -> None:
    weight = nn.Conv2d(4, 6, 3).to(DEVICE, memory_format=torch.channels_last).weight
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    saved = deepcopy(optimizer.state_dict())
    for name in ("exp_avg", "exp_avg_sq"):
        saved["state"][0][name] = saved["state"][0][name].contiguous()
    ranks: Any = SimpleNamespace(rank=1, size=2)
    span: Any = SimpleNamespace(name="weight")
    StateParts.of(optimizer, {"weight": weight}, ranks).load(saved, None, {0: span})
    loaded = optimizer.state[weight]["exp_avg"]
    assert (weight[3:].stride(), 3) == (loaded.stride(), len(loaded))
    assert torch.equal(saved["state"][0]["exp_avg"][3:], loaded)


@pytest.mark.parametrize("kind", [Whole, ByElement])
def test_an_optimizer_must_say_that_it_updates_each_value_by_itself(
    kind: type[torch.optim.Optimizer],
) -> None:
    model = nn.Linear(2, 2).to(DEVICE)
    optimizer = kind(model.parameters())
    with HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch)) as trainer:
        run = trainer._session.run
        if kind is ByElement:
            check_stage(run, model, optimizer, ShardingConfig(stage=1))
            return
        with pytest.raises(ConfigError, match="Whole may update a weight as a whole"):
            check_stage(run, model, optimizer, ShardingConfig(stage=1))


@pytest.mark.parametrize(("interval", "stage"), [(1, 3), (2, 2), (2, 3)])
def test_blocks_that_are_computed_again_together_are_not_for_stage_3(
    interval: int, stage: Stage
) -> None:
    model = Scaled("").to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    config = {"plugins": {"activation-checkpointing": {"interval": interval}}}
    with HybridTrainer(
        model, optimizer, loss_fn=lambda net, batch: net(batch), config=config
    ) as trainer:
        run = trainer._session.run
        if (interval, stage) != (2, 3):
            check_stage(run, model, optimizer, ShardingConfig(stage=stage))
            return
        with pytest.raises(ConfigError, match="computes 2 blocks again at once"):
            check_stage(run, model, optimizer, ShardingConfig(stage=stage))


def test_statistics_of_one_processs_samples_are_refused() -> None:
    model = nn.Sequential(nn.Conv1d(2, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True))
    model = model.to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters())
    with (
        HybridTrainer(model, optimizer, loss_fn=lambda net, batch: net(batch).mean()) as trainer,
        pytest.raises(ConfigError, match="'1' is a BatchNorm, or keeps running statistics"),
    ):
        check(trainer._session.run, model, 2)
