"""Runs of a loop in which other code changes weights of streamed blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from law_loops import STEPS, Habit, batch, start, traced, trained

from neaptide import HybridTrainer

if TYPE_CHECKING:
    from pathlib import Path

    import torch

WAYS: dict[str, dict[str, Any]] = {
    "cpu": {"optimizer_on": "cpu", "resident": 1},
    "cpu, graph": {"optimizer_on": "cpu", "resident": 2, "mode": "graph"},
    "device": {"optimizer_on": "device", "resident": 0},
    "device, all held": {"optimizer_on": "device", "max_active_layers": 4, "resident": 0},
    "device, resident": {"optimizer_on": "device", "resident": 4},
    "device, graph": {"optimizer_on": "device", "resident": 1, "mode": "graph"},
    "in backward": {"optimizer_on": "device", "update": "in_backward", "resident": 2},
}


def fitted(habit: Habit, way: str, directory: Path) -> dict[str, torch.Tensor]:
    """Return the weights after `fit`, which keeps copies from step to step."""
    loop = start(habit)
    config = {
        "plugins": {"layer-streaming": WAYS[way]},
        "train": {"steps": STEPS},
        "run": {"dir": str(directory)},
    }
    trainer = HybridTrainer(loop.model, loop.optimizer, loss_fn=habit.loss_fn, config=config)
    with trainer, loop.undo:
        if habit.before is not None:
            habit.before(loop)
        trainer.fit([batch(step) for step in range(STEPS)])
    return traced(loop, [], 0.0).weights


def streamed(habit: Habit, way: str, directory: Path) -> dict[str, torch.Tensor]:
    """Return the weights after the steps of an own loop."""
    return trained(habit, {"layer-streaming": WAYS[way]}, directory).weights
