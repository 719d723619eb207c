"""Rows in RAM, where there is no GPU: what is said, and what is refused."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from several_runs import digest, failed, trained
from support import DEVICE
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy

from neaptide import HybridTrainer
from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_plugins.sharding.config import ShardingConfig
from neaptide_plugins.sharding.offloading import RowsHome

if TYPE_CHECKING:
    from pathlib import Path

OFFLOADED = "--set=plugins.sharding.offload=pinned"
STAGE = "--set=plugins.sharding.stage=3"


@pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")
def test_on_cpus_it_is_said_to_have_no_effect_and_has_none(folder: Path) -> None:
    short = ["--set=train.steps=5", STAGE]
    plain = trained(folder, 2, "not-offloaded", *short)
    done = failed(folder, 2, *short, OFFLOADED, "--set=run.dir=offloaded")
    assert [0, 0] == [each.returncode for each in done]
    (line,) = (one for one in done[0].stderr.splitlines() if "sharding.not_offloaded" in one)
    assert "the run computes on the CPU, whose memory is RAM" in line
    assert digest(plain) == digest(folder / "offloaded")


@pytest.mark.parametrize("stage", ["replicate", 1])
def test_a_process_that_has_all_weights_has_no_rows_to_move(stage: str | int) -> None:
    with pytest.raises(ConfigError) as caught:
        configured({"plugins": {"sharding": {"stage": stage, "offload": "cpu"}}})
    told = str(caught.value)
    assert 'needs stage = 2, 3 or "hybrid"' in told
    assert json.dumps("cpu").strip('"') in told
    assert 1 == len(told.splitlines())


@pytest.mark.parametrize("where", ["cpu", DEVICE])
@pytest.mark.parametrize("offload", ["none", "cpu", "pinned"])
def test_rows_are_in_ram_where_there_is_another_memory(where: str, offload: str) -> None:
    model = nn.Linear(2, 2).to(where)
    moves = offload != "none" and model.weight.device.type != "cpu"
    config = ShardingConfig(stage=3, offload=offload)  # type: ignore[arg-type]  # of a list
    for more in ({}, {"capturable": True}):
        optimizer = torch.optim.AdamW(model.parameters(), **more)  # type: ignore[arg-type]
        with HybridTrainer(model, optimizer, loss_fn=lambda net, one: net(one).sum()) as trainer:
            run = trainer._session.run
            if moves and more:
                with pytest.raises(ConfigError, match="AdamW has capturable = true"):
                    RowsHome.of(config, run, optimizer)
                continue
            home = RowsHome.of(config, run, optimizer)
        assert ("host" if moves else "device") == home.tier
        policy = home.policy()
        assert moves == isinstance(policy, CPUOffloadPolicy)
        assert (offload == "pinned" and moves) == getattr(policy, "pin_memory", False)
