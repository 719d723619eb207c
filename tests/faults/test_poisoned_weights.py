"""A NaN in one weight, from outside or from a plugin, is told and trains nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import CYCLE, plugin_with, same_tensors, stranger, tensors_of, tiny_trainer

from neaptide import DivergedError, HybridTrainer, Outcome, hookimpl

if TYPE_CHECKING:
    from pathlib import Path

    from neaptide import PluginSpec, StepResult

PREDICTING = {
    "phases": CYCLE,
    "plugins": {"predictor-drift": {"min_window": 4, "sample_every": 1}},
}
STEPS = 14


def poison(model: Any) -> None:
    with torch.no_grad():
        model.head.weight.view(-1)[3] = torch.nan


def state(trainer: HybridTrainer) -> dict[str, torch.Tensor]:
    """Return copies of all parameters, and of the optimizer's state."""
    found = {name: one.detach().clone() for name, one in trainer.model.named_parameters()}
    entries = trainer.optimizer.state_dict()["state"]
    for number, tensors in entries.items():
        found |= {f"{number}.{name}": torch.as_tensor(one).clone() for name, one in tensors.items()}
    return found


def poisoning(last: int) -> PluginSpec:
    """Return a plugin that writes a NaN into one weight at the end of step `last`."""

    @hookimpl
    def before_forward(self: Any, model: Any) -> None:
        self.model = model

    @hookimpl
    def after_step(self: Any, step: int) -> None:
        if step == last:
            poison(self.model)

    members = {"model": None, "after_step": after_step, "before_forward": before_forward}
    return stranger(plugin_with(**members), "poisoner")


def train_to_the_end(
    trainer: HybridTrainer, batches: Any, outcomes: list[StepResult], before: Any
) -> None:
    for batch in batches:
        outcomes.append(trainer.step(batch))
        assert same_tensors(before, state(trainer))


def test_the_steps_below_are_in_every_phase() -> None:
    trainer, batches = tiny_trainer(PREDICTING)
    with trainer:
        results = [trainer.step(batch) for batch in (batches * 2)[:STEPS]]
    assert {"warmup", "full", "correct"} <= {result.phase.name for result in results}
    assert any(result.jump and result.jump.accepted for result in results)


@pytest.mark.parametrize("by_plugin", [False, True])
@pytest.mark.parametrize("at", range(1, STEPS))
def test_a_nan_in_one_weight_is_told_and_trains_nothing(
    tmp_path: Path, at: int, *, by_plugin: bool
) -> None:
    config = {**PREDICTING, "run": {"dir": str(tmp_path)}, "train": {"max_skipped": 3}}
    trainer, batches = tiny_trainer(config, [poisoning(at)] if by_plugin else [])
    with trainer:
        for batch in (batches * 2)[:at]:
            trainer.step(batch)
        if not by_plugin:
            poison(trainer.model)
        before = state(trainer)
        outcomes: list[StepResult] = []
        with pytest.raises(DivergedError, match="4 updates in a row"):
            train_to_the_end(trainer, batches, outcomes, before)
        assert same_tensors(before, state(trainer))
    assert 3 == sum(one.outcome is Outcome.SKIPPED for one in outcomes)
    assert not any(one.updated or (one.jump and one.jump.accepted) for one in outcomes)
    lines = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    told = [json.loads(line) for line in lines if "update.skipped" in line]
    assert [1, 2, 3, 4] == [event["in_a_row"] for event in told]


def test_once_the_weight_is_mended_training_goes_on() -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.step(batches[0])
        good = tensors_of(trainer.model)["head.weight"].clone()
        poison(trainer.model)
        assert Outcome.SKIPPED is trainer.step(batches[1]).outcome
        with torch.no_grad():
            trainer.model.head.weight.copy_(good)
        assert trainer.step(batches[1]).updated
