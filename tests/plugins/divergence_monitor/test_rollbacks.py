"""What a rollback restores, and who hears of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from neaptide import ROLLBACK, HybridTrainer, Outcome
from neaptide_plugins.divergence_monitor.alarm import Alarm, AlarmLevel

NAME = "divergence-monitor"


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    x = [torch.randn(16, 4, generator=generator) for _ in range(count)]
    return [(one, one.sum(1, keepdim=True)) for one in x]


def trainer_of(**more: Any) -> HybridTrainer:
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    plugins = {NAME: {"recovery": "rollback", "snapshot_every": 4}, **more}
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config={"plugins": plugins})


@pytest.mark.parametrize("explodes", range(12, 20))
def test_exploded_weights_are_never_restored(explodes: int) -> None:
    restored: list[float] = []
    with trainer_of() as trainer:
        trainer.run.stash.on_set(
            ROLLBACK, lambda: restored.append(float(trainer.model.weight.detach().abs().max()))
        )
        for number, batch in enumerate(batches(explodes + 4)):
            if number == explodes:
                with torch.no_grad():
                    trainer.model.weight.mul_(1e4)
            trainer.step(batch)
    assert len(restored) == 1
    assert restored[0] < 10.0


def test_gradients_that_wait_are_not_added_to_those_of_restored_weights() -> None:
    outcomes, rollbacks = [], []
    with trainer_of(**{"gradient-accumulation": {"steps": 3, "across_steps": True}}) as trainer:
        trainer.run.stash.on_set(ROLLBACK, lambda: rollbacks.append(len(outcomes)))
        for number, batch in enumerate(batches(12)):
            if number == 4:  # one batch of three is in the gradients
                trainer.hooks.plugins[NAME]._watch.alarm = Alarm(AlarmLevel.CRITICAL)
            outcomes.append(trainer.step(batch).outcome)
    assert rollbacks == [6]
    assert [outcomes[number] is Outcome.DEFERRED for number in (3, 4, 5)] == [True, True, False]


def test_a_rollback_of_somebody_else_ends_the_alarm_and_drops_the_snapshot() -> None:
    with trainer_of() as trainer:
        for batch in batches(6):
            trainer.step(batch)
        monitor = trainer.hooks.plugins[NAME]
        monitor._watch.alarm = Alarm(AlarmLevel.WARNING)
        assert trainer.estimate_memory().total(owner=NAME)
        trainer.run.stash.set(ROLLBACK, trainer)
        assert trainer.estimate_memory().total(owner=NAME) == 0
        assert trainer.step(batches(1)[0]).updated
        assert monitor.collect_metrics()["level"] == float(AlarmLevel.NORMAL)
