"""The law for rollbacks: what a plugin learned from undone updates changes nothing afterwards."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from neaptide.api.steps import ROLLBACK, Outcome

from .failures import require
from .parting import partings
from .tiny import tiny_task

if TYPE_CHECKING:
    from collections.abc import Iterator

    from neaptide.run.trainer import HybridTrainer

    from .subject import Subject

BEFORE = 13
UNDONE = 6
"""Number of steps before the snapshot, and from the snapshot to the rollback."""


def rollback_is_forgotten(subject: Subject) -> None:
    """Two runs that differ only in steps that a rollback has undone have the same weights.

    Between the snapshot and the rollback, the weights of the second run are larger than the
    weights of the first run.
    """
    train = f"train {BEFORE} steps, take a snapshot,"
    undo = f"train {UNDONE} steps in Full, restore the snapshot, and train to the end"
    subject.attempt.tries(f"{train} {undo}")
    expected, loss = _end(subject, factor=1.0)
    subject.attempt.tries(f"{train} enlarge the weights, {undo}")
    own, own_loss = _end(subject, factor=1.5)
    changed = sorted(parting.name for parting in partings(expected, own))
    require(
        not changed and loss == own_loss,
        f"the runs end with other values of {changed}" if changed else "other losses of evaluation",
        "in on_run_start call run.stash.on_set(ROLLBACK, forget), and drop there everything that "
        "was learned from earlier updates: windows, averages, statistics, gradients",
    )


def _end(subject: Subject, factor: float) -> tuple[dict[str, torch.Tensor], float]:
    task = tiny_task()
    batches = iter(task.batches)
    with subject.trainer(task) as trainer:
        _train(trainer, batches, BEFORE)
        snapshot = trainer.store.snapshot(optimizer=True)
        buffers = [buffer.clone() for buffer in task.model.buffers()]
        for span in [span for span in trainer.store.spans() if span.trainable]:
            with trainer.store.loan(span, "write") as weight, torch.no_grad():
                weight.mul_(factor)
        _train(trainer, batches, UNDONE, phase="full")
        trainer.store.restore(snapshot)
        for buffer, saved in zip(task.model.buffers(), buffers, strict=True):
            buffer.copy_(saved)
        trainer.run.stash.set(ROLLBACK, subject)
        rest = list(batches)
        _train(trainer, iter(rest[2:]), len(rest) - 2)
        loss = trainer.evaluate(rest[:2])
    state = task.model.state_dict()
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}, loss


def _train(
    trainer: HybridTrainer, batches: Iterator[Any], steps: int, phase: str | None = None
) -> None:
    """Train on `steps` batches, and on more batches while gradients wait for an update."""
    for batch in islice(batches, steps):
        result = trainer.step(batch, phase=phase)
    while result.outcome is Outcome.DEFERRED:
        result = trainer.step(next(batches), phase=phase)
