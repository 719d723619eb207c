"""Settings that cannot be used are refused, each with its place and a way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import tiny_trainer
from torch import nn

from neaptide import ConfigError, HybridTrainer


def trainer_with(settings: dict[str, Any], **config: Any) -> HybridTrainer:
    """Return a trainer on the CPU, where fp8 is refused unless it is asked for twice."""
    config = {"plugins": {"mixed-precision": settings}, **config}
    return tiny_trainer(config, device=torch.device("cpu"))[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"initial_scale": 1000.0}, "must be a power of two (got 1000.0)"),
        ({"initial_scale": 0.0}, "must be a power of two (got 0.0)"),
        ({"initial_scale": -2.0}, "must be a power of two (got -2.0)"),
        ({"initial_scale": 2.0**127}, "initial_scale"),
        ({"growth_factor": 3.0}, "must be a power of two (got 3.0)"),
        ({"growth_factor": 1.0}, "growth_factor"),
        ({"backoff_factor": 0.7}, "must be a power of two (got 0.7)"),
        ({"backoff_factor": 2.0}, "backoff_factor"),
        ({"growth_interval": 0}, "growth_interval"),
        ({"full": "fp4"}, "fp4"),
        ({"full": "fp8"}, '"fp8" would be slower than "bf16": on \'cpu\''),
        ({"evaluate": "fp8"}, "set fp8_even_if_slower = true @ plugins.mixed-precision.evaluate"),
        ({"ful": "bf16"}, "full"),
    ],
)
def test_a_bad_setting_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        trainer_with(settings)
    assert message in str(caught.value)
    assert "plugins.mixed-precision" in str(caught.value)


def test_fp16_without_the_finite_check_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"check_finite = true .*mixed-precision\.full") as caught:
        trainer_with({"full": "fp16"}, train={"check_finite": False})
    assert 1 == len(str(caught.value).splitlines())


@pytest.mark.parametrize(
    "settings", [{}, {"full": "bf16"}, {"predict": "fp16", "evaluate": "fp16"}]
)
def test_nothing_else_needs_the_finite_check(settings: dict[str, str]) -> None:
    trainer_with(settings, train={"check_finite": False}).close()


def test_fp16_of_weights_in_fp16_is_refused_in_one_line() -> None:
    model = nn.Linear(2, 2).half()
    with pytest.raises(ConfigError, match="'weight' is float16") as caught:
        HybridTrainer(
            model,
            torch.optim.SGD(model.parameters()),
            config={"plugins": {"mixed-precision": {"correct": "fp16"}}},
        )
    assert 1 == len(str(caught.value).splitlines())
