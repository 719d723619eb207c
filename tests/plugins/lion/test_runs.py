"""Lion in runs: named, refused, accounted for; the rest is in tests/toolkit/optim."""

from __future__ import annotations

from typing import Any

import pytest
from optimizer_runs import config, trainer_of

from neaptide import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_plugins.lion.optimizer import Lion


def test_naming_it_enables_it_with_its_options() -> None:
    options = {"weight_decay": 0.25, "betas": [0.8, 0.9]}
    trainer, _ = trainer_of(config({"name": "lion", "lr": 0.01, "options": options}))
    with trainer:
        assert type(trainer.optimizer) is Lion
        (group,) = trainer.optimizer.param_groups
        assert (0.01, 0.25, (0.8, 0.9)) == (group["lr"], group["weight_decay"], group["betas"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"betas": (0.9, 0.99, 0.999)}, "optimizer.options.betas"),
        ({"betas": (0.9, 1.0)}, "optimizer.options.betas"),
        ({"weight_decay": -1.0}, "optimizer.options.weight_decay"),
        ({"weight_dekay": 0.1}, r"'weight_decay'\?\) @ optimizer.options.weight_dekay"),
        ({"seed": -1}, "optimizer.options.seed"),
        ({"rounding": "up"}, "optimizer.options.rounding"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config({"name": "lion", "options": options}))
    assert "\n" not in str(caught.value)


def test_the_ledger_has_the_bytes_of_the_state() -> None:
    trainer, batches = trainer_of(config({"name": "lion", "lr": 0.003}))
    with trainer:
        trainer.step(batches[0])
        stated = trainer.estimate_memory("full").total(kind="optimizer.state")
        (group,) = trainer.optimizer.param_groups
        # 4 bytes for each element, and 4 for each step count
        assert 4 * sum(param.numel() + 1 for param in group["params"]) == stated
