"""Settings that are refused in one line, by a run and by a check of its configuration."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from scheduled import STEPS, loss_fn, settings, two_groups

from neaptide import ConfigError, HybridTrainer
from neaptide.cli.loading import advice
from neaptide.hooks.enabling import configured


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"name": "cosinus"}, "'name' must be constant, linear, cosine, wsd, or a class of"),
        ({"name": "StepsLR"}, "did you mean 'StepLR'"),
        ({"name": "ReduceLROnPlateau"}, "needs a metric"),
        ({"name": "LambdaLR"}, "needs a function"),
        ({"name": "SequentialLR"}, "needs schedulers"),
        ({"name": "StepLR"}, "step_size"),
        ({"name": "StepLR", "options": {"step": 3}}, "no option 'step'"),
        ({"name": "StepLR", "options": {"last_epoch": 3}}, "no option 'last_epoch'"),
        ({"name": "StepLR", "options": {"step_size": "3"}}, "refuses its options"),
        ({"name": "OneCycleLR", "options": {"total_steps": 5}}, "ends after 5 updates"),
        ({"name": "StepLR", "warmup": 3}, "'warmup' is a setting of"),
        ({"name": "linear", "decay": 0.2}, "'decay' is a setting of wsd"),
        ({"name": "constant", "floor": 0.2}, "'floor' is a setting of"),
        ({"options": {"gamma": 0.2}}, "'options' is a setting of classes of torch"),
        ({"warmup": 1.5}, "whole number of updates"),
        ({"warmup": 25}, "do not fit into train.steps = 24"),
        ({"name": "wsd", "warmup": 10, "decay": 0.9}, "a decay of 22 do not fit"),
    ],
)
def test_wrong_settings_are_refused_in_one_line(given: dict[str, Any], wrong: str) -> None:
    model, optimizer = two_groups()
    before = copy.deepcopy(optimizer.state_dict()["param_groups"][0]["lr"])
    with pytest.raises(ConfigError) as caught:
        HybridTrainer(model, optimizer, loss_fn=loss_fn, config=settings(**given))
    (line,) = str(caught.value).splitlines()
    assert wrong in line
    assert "plugins.lr-schedule" in line
    assert before == optimizer.param_groups[0]["lr"]


def test_an_optimizer_without_a_rate_is_refused() -> None:
    class Rateless(torch.optim.Optimizer):
        """Moves weights by itself."""

        def __init__(self, params: Any) -> None:
            super().__init__(params, {})

    model, _ = two_groups()
    with pytest.raises(ConfigError, match="Rateless has groups without a rate"):
        HybridTrainer(model, Rateless(model.parameters()), loss_fn=loss_fn, config=settings())


def test_a_check_refuses_what_does_not_fit_as_the_run_does() -> None:
    line = r"a warmup of 25 updates do not fit into train.steps = 24 \(got 25\) @ plugins.lr-s"
    with pytest.raises(ConfigError, match=line):
        advice(*configured(settings(warmup=25)))
    assert [] == advice(*configured(settings(warmup=STEPS)))
    assert [] == advice(*configured({"plugins": {"lr-schedule": {"name": "StepLR"}}}))
    longer = {**settings(warmup=2000), "train": {"epochs": 2}}
    assert [] == advice(*configured(longer))
