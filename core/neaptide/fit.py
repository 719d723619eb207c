"""A whole run over data: resume, step, evaluate, save, stop on signals, sum up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from . import checkpoint, rng
from .errors import CheckpointError, DataError
from .logging import CONSOLE
from .signals import Interrupted, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .state import TrainState
    from .steps import StepResult
    from .task import Data
    from .trainer import HybridTrainer

    Observer = Callable[[StepResult, TrainState], None]


@attrs.define(eq=False)
class Cursor:
    """Where in the data a run is, for data that cannot say so itself.

    Such data is iterated again from the state of the random generators at the start of the pass,
    and the batches already used are skipped.
    """

    used: int = 0
    """Batches taken from the pass in progress."""
    started_with: dict[str, Any] | None = None
    """Random state in which the pass began."""


class Feed:
    """Endless batches from `Data.train`, and their place in it as a tree."""

    def __init__(self, train: Any, state: dict[str, Any] | None) -> None:
        self._train = train
        self._resumable = hasattr(train, "state_dict") and hasattr(train, "load_state_dict")
        self._cursor = Cursor()
        if state is None:
            return
        if ("own" in state) != self._resumable:
            msg = "the checkpoint's data position is of another kind of data; use the same source"
            raise CheckpointError(msg)
        if self._resumable:
            train.load_state_dict(state["own"])
        else:
            self._cursor = Cursor(**state)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the last batch taken."""
        if self._resumable:
            return {"own": self._train.state_dict()}
        return attrs.asdict(self._cursor, recurse=False)

    def __iter__(self) -> Iterator[Any]:
        while True:
            taken = 0
            for batch in self._resumed_pass() if not self._resumable else self._train:
                taken += 1
                yield batch
            if taken == 0 and self._cursor.used == 0:
                msg = "the training data gave no batch; check [data] or the loader (is it used up?)"
                raise DataError(msg)
            self._cursor = Cursor()

    def _resumed_pass(self) -> Iterator[Any]:
        cursor = self._cursor
        if cursor.started_with is None:
            cursor.started_with = rng.capture()
            yield from self._counted(iter(self._train))
            return
        now = rng.capture()
        rng.restore(cursor.started_with)
        batches = iter(self._train)
        for index in range(cursor.used):
            if next(batches, self) is self:
                msg = (
                    f"the training data ended after {index} batches, but the checkpoint has used "
                    f"{cursor.used}; resume on the same data"
                )
                raise DataError(msg)
        rng.restore(now)
        yield from self._counted(batches)

    def _counted(self, batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            self._cursor.used += 1
            yield batch


class Fit:
    """One call of `trainer.fit`."""

    def __init__(self, trainer: HybridTrainer, data: Data, observe: Observer | None) -> None:
        self._trainer = trainer
        self._data = data
        self._observe = observe
        self._recorder = trainer._recorder  # noqa: SLF001 - fit is the trainer's own second half
        self._validated: tuple[int, float] | None = None

    def run(self, resume: Any, *, allow_changes: bool) -> dict[str, Any]:
        """Train to the end; see `HybridTrainer.fit`."""
        trainer, state = self._trainer, self._trainer.state
        resumed = self._resume(resume, allow_changes=allow_changes)
        trainer._begin()  # noqa: SLF001 - also where no step is left to make
        feed = Feed(self._data.train, trainer._data_state if resumed else None)  # noqa: SLF001
        total = trainer.config.train.steps
        with stop_on_signals() as stop:
            batches = iter(feed)
            while state.step < total:
                result = trainer.step(next(batches))
                trainer._data_state = feed.state_dict()  # noqa: SLF001 - what a checkpoint saves
                if self._observe is not None:
                    self._observe(result, state)
                if stop.received is not None:
                    self._leave(stop.received)
                if result.updated:
                    self._periodic(total)
        return self._finish()

    def _resume(self, resume: Any, *, allow_changes: bool) -> bool:
        root = self._recorder.checkpoints
        if resume is None:
            if root is not None and checkpoint.checkpoints(root):
                msg = (
                    f"{root.parent} holds checkpoints of an earlier run; go on from them with "
                    f"--resume auto (resume='auto'), or set run.dir elsewhere"
                )
                raise CheckpointError(msg)
            return False
        path = resume
        if resume == "auto":
            if root is None:
                msg = "resume='auto' needs run.dir in the config"
                raise CheckpointError(msg)
            path, warnings = checkpoint.newest_valid(root)
            for warning in warnings:
                CONSOLE.warning("%s", warning)
            if path is None:
                if warnings:
                    msg = f"no checkpoint in {root} can be loaded; remove it to start anew"
                    raise CheckpointError(msg)
                return False
        self._trainer.load(path, allow_changes=allow_changes)
        return True

    def _periodic(self, total: int) -> None:
        trainer, step = self._trainer, self._trainer.state.step
        config = trainer.config
        if config.eval.every and step % config.eval.every == 0 and step < total:
            self._validate()
        if config.run.checkpoint_every and step % config.run.checkpoint_every == 0 and step < total:
            try:
                self._save()
            except CheckpointError as error:
                # The last good checkpoint stands: a full disk costs one save, not the run.
                trainer.run.log.error("checkpoint.failed", step=step, error=str(error))

    def _validate(self) -> float | None:
        trainer, step = self._trainer, self._trainer.state.step
        if self._data.validation is None:
            return None
        if self._validated is None or self._validated[0] != step:
            loss = trainer.evaluate(self._data.validation)
            phase = trainer.state.phase or trainer.state.schedule.phase
            self._recorder.metrics(step, phase, {"val_loss": loss})
            self._validated = (step, loss)
        return self._validated[1]

    def _save(self) -> Path | None:
        root = self._recorder.checkpoints
        if root is None:
            return None
        path = checkpoint.step_directory(root, self._trainer.state.step)
        self._trainer.save(path)
        if self._trainer.config.run.keep:
            checkpoint.prune(root, self._trainer.config.run.keep)
        return path

    def _leave(self, received: int) -> None:
        path = self._save()
        step = self._trainer.state.step
        where = f"saved {path}; go on with --resume auto" if path else "not saved: no run.dir"
        msg = f"stopped by signal {received} after update {step}: {where}"
        raise Interrupted(received, msg)

    def _finish(self) -> dict[str, Any]:
        trainer = self._trainer
        trainer._loop.settle()  # noqa: SLF001 - the last row
        val_loss = self._validate()
        self._save()
        return self._recorder.summary(trainer.state, val_loss, trainer.digest())
