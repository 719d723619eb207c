"""The law for devices: nothing reads or writes memory that another stream still uses."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .failures import require
from .subject import STEPS, Subject
from .tiny import tiny_task

if TYPE_CHECKING:
    from collections.abc import Callable

_DEVICE = "simulated_gpu"
"""The module of a device of its own: it is there, or it is not."""


def no_races(subject: Subject) -> None:
    """On the simulated GPU, train, evaluate, save and load without a race; elsewhere do nothing."""
    if sys.modules.get(_DEVICE) is None:
        return
    subject.attempt.tries(
        f"train {STEPS} steps on the simulated GPU with an evaluation, a save and a load"
    )
    found = races_in(lambda: _run(subject))
    require(
        not found,
        "; ".join(found),
        "order the two operations: let one stream wait for an event of the other one, or the host "
        "for the event, and name the stream with record_stream before the memory is freed",
    )


def races_in(action: Callable[[], None]) -> list[str]:
    """Return the races of an action, which the simulated GPU then forgets; none without it."""
    device = sys.modules.get(_DEVICE)
    if device is None:
        action()
        return []
    try:
        with device.detect_races():
            action()
    except device.RaceError as error:
        return str(error).splitlines()
    return []


def _run(subject: Subject) -> None:
    task = tiny_task()
    with subject.trainer(task) as trainer, tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "checkpoint"
        for index, batch in enumerate(task.batches[:STEPS]):
            trainer.step(batch)
            if index == STEPS // 2:
                trainer.evaluate(task.batches[STEPS:])
                trainer.save(saved)
        trainer.load(saved)
        trainer.step(task.batches[STEPS // 2 + 1])
