"""Adafactor in runs: named, refused, accounted for; the rest is in tests/toolkit/optim."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from optimizer_runs import config, trainer_of

from neaptide import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_plugins.adafactor.optimizer import Adafactor


def test_naming_it_enables_it_with_its_options() -> None:
    options = {"weight_decay": 0.25, "relative_step": False, "eps": [1e-20, 0.01]}
    optimizer = {"name": "adafactor", "lr": 0.01, "options": options}
    trainer, _ = trainer_of(config(optimizer))
    with trainer:
        assert type(trainer.optimizer) is Adafactor
        (group,) = trainer.optimizer.param_groups
        assert (0.01, 0.25, (1e-20, 0.01)) == (group["lr"], group["weight_decay"], group["eps"])
        assert (False, True) == (group["relative_step"], group["scale_parameter"])


def test_that_of_torch_has_its_own_name() -> None:
    trainer, _ = trainer_of(config({"name": "torch.optim:Adafactor"}))
    with trainer:
        assert type(trainer.optimizer) is torch.optim.Adafactor


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps": (1e-30,)}, "optimizer.options.eps"),
        ({"eps": (0.0, 1e-3)}, "optimizer.options.eps"),
        ({"decay_rate": -0.8}, "optimizer.options.decay_rate"),
        ({"clip_threshold": 0.0}, "optimizer.options.clip_threshold"),
        ({"relative_step": "no"}, "optimizer.options.relative_step"),
        ({"beta1": 0.9}, "optimizer.options.beta1"),
    ],
    ids=str,
)
def test_a_wrong_option_is_found_with_the_config(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        configured(config({"name": "adafactor", "options": options}))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_ledger_has_the_bytes_of_the_state(dtype: torch.dtype) -> None:
    trainer, batches = trainer_of(config({"name": "adafactor", "lr": 0.05}), dtype=dtype)
    with trainer:
        trainer.step(batches[0])
        stated = trainer.estimate_memory("full").total(kind="optimizer.state")
        (group,) = trainer.optimizer.param_groups
    elements = sum(
        sum(param.shape) if param.dim() == 2 else param.numel() for param in group["params"]
    )

    assert 4 * elements + 4 * len(group["params"]) == stated
