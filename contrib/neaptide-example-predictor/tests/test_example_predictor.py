"""Tests of the distribution: it is installed, listed and configured, and passes `check_plugin`."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from neaptide import ConfigError, HybridTrainer
from neaptide_toolkit.testing import LAWS, check_plugin

NAME = "example-predictor"


@pytest.mark.parametrize("law", LAWS)
def test_keeps_the_contract(law: str) -> None:
    check_plugin(NAME, {"min_updates": 5}, laws=[law])


def test_is_listed_by_the_command_line() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "neaptide", "plugins", "show", NAME, "--json"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert NAME == json.loads(listed.stdout)["name"]


def test_jumps_along_a_straight_line() -> None:
    """Under plain SGD on a linear loss every update is the same, so the jump is exact."""
    model = nn.Linear(4, 1, bias=False)
    start = model.weight.detach().clone()
    config = {
        "phases": {"warmup": {"steps": 1}, "full": {"steps": 5}},
        "plugins": {NAME: {"min_updates": 5, "horizon": 3}},
    }
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).sum()

    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        results = [trainer.step(torch.ones(2, 4)) for _ in range(7)]
    jumps = [result.jump for result in results if result.jump is not None]
    assert [3] == [jump.horizon for jump in jumps]
    torch.testing.assert_close(model.weight.detach(), start - 0.01 * 2 * (7 + 3))


def test_a_bad_setting_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"@ plugins\.example-predictor\.decay"):
        HybridTrainer(nn.Linear(1, 1), config={"plugins": {NAME: {"decay": 2.0}}})
