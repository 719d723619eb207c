"""Runs of the tiny task whose optimizer a configuration names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from support import CYCLE, tensors_of

from neaptide import HybridTrainer
from neaptide_toolkit.testing.tiny import STEADY_PREDICTOR, tiny_loss, tiny_task

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 14
STREAMED: dict[str, dict[str, Any]] = {
    "cpu": {"optimizer_on": "cpu"},
    "device": {"optimizer_on": "device"},
    "in backward": {"update": "in_backward"},
}
SPLIT = {way: {**STREAMED[way], "master": "split"} for way in ("device", "in backward")}


def config(optimizer: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Return the configuration of a run with all phases."""
    return {"optimizer": optimizer, "phases": CYCLE, "train": {"steps": STEPS}} | sections


def trainer_of(
    settings: dict[str, Any], *plugins: Any, dtype: torch.dtype = torch.float32
) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task whose optimizer the config names, and its batches."""
    task = tiny_task(steps=STEPS)
    trainer = HybridTrainer(
        task.model.to(dtype),
        loss_fn=tiny_loss,
        config=settings,
        plugins=[STEADY_PREDICTOR, *plugins],
    )
    batches = [{**batch, "x": batch["x"].to(dtype)} for batch in task.batches]
    return trainer, batches


def trained(
    settings: dict[str, Any], *plugins: Any, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Return what a run leaves."""
    trainer, batches = trainer_of(settings, *plugins, dtype=dtype)
    with trainer:
        for batch in batches:
            trainer.step(batch)
    return tensors_of(trainer.model)


def resumed(
    after: int, folder: Path, settings: dict[str, Any], dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return what a run leaves, and what one leaves that was saved after some steps and goes on."""
    expected = trained(settings, dtype=dtype)
    trainer, batches = trainer_of(settings, dtype=dtype)
    with trainer:
        for batch in batches[:after]:
            trainer.step(batch)
        trainer.save(folder)
    trainer, batches = trainer_of(settings, dtype=dtype)
    with trainer:
        trainer.load(folder)
        for batch in batches[after:]:
            trainer.step(batch)
    return expected, tensors_of(trainer.model)


def learns(settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> bool:
    """Return whether the loss falls by a twentieth."""
    trainer, batches = trainer_of(settings, dtype=dtype)
    with trainer:
        before = trainer.evaluate(batches)
        for batch in batches:
            trainer.step(batch)
        return trainer.evaluate(batches) < 0.95 * before
