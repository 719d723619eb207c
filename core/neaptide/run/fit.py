"""Trains on all the data: resumes, makes steps, saves, evaluates, and stops on signals."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from torch.utils.data import DataLoader

from neaptide import checkpoint, errors
from neaptide.api.stash import StashKey
from neaptide.api.steps import MEASURED, STOP, Outcome
from neaptide.errors import CheckpointError, DataError, RunDirectoryError, WrongCheckpointError
from neaptide.io.logging import CONSOLE
from neaptide.plugin import sole

from .feed import Feed, guarded
from .signals import STOPPING, Interrupted, StopRequest, stop_on_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from neaptide.api.steps import StepResult
    from neaptide.api.task import Data
    from neaptide.io.summary import Summary
    from neaptide.loop.state import TrainState

    from .session import Session

    Observer = Callable[[StepResult, TrainState], None]


SAVE_CLOCK_GROUP = "neaptide.save_clocks"
"""The group of the entry point `clock(run)`, which decides when `fit` saves.

`due(step)` is asked after each update; `with clock.saving():` is around each save.
"""
FITTING: StashKey[object] = StashKey("fitting")
"""Set to a new object while `trainer.fit` makes steps and no code between them changes weights.

Set to None at the end. Code between steps is that of the data and of `observe`. Lists, tuples and
DataLoaders change no weight; other objects say so with the attribute `leaves_weights = True`.
"""


def leave_weights(data: Data, observe: Observer | None) -> bool:
    """Return whether neither changes weights between two steps."""
    return all(
        source is None
        or isinstance(source, list | tuple | DataLoader)
        or getattr(source, "leaves_weights", False)
        for source in (data.train, observe)
    )


def require_no_run(root: Path) -> None:
    """Raise RunDirectoryError if a new run cannot begin, because `root` has checkpoints."""
    if checkpoint.checkpoints(root):
        where = root.parent if root.name == "checkpoints" else root
        msg = (
            f"{where} holds checkpoints of an earlier run; go on from them with --resume auto "
            f"(resume='auto'), or set run.dir elsewhere"
        )
        raise RunDirectoryError(msg)


class _Stopped(Exception):  # noqa: N818 - no fault: it only ends an evaluation
    """A signal arrived during an evaluation."""


class Trains(Protocol):
    """The methods of a trainer that `Fit` calls. A subclass may override these methods."""

    def step(self, batch: Any) -> StepResult:
        """Train on one batch."""

    def evaluate(self, batches: Any) -> float:
        """Return the mean loss."""

    def save(self, directory: Path) -> Path:
        """Write a checkpoint."""

    def load(self, directory: Any, *, allow_changes: bool) -> None:
        """Load a checkpoint."""


class Fit:
    """One call of `trainer.fit`."""

    def __init__(
        self, session: Session, trainer: Trains, data: Data, observe: Observer | None
    ) -> None:
        self._session = session
        self._trainer = trainer
        self._data = data
        self._observe = observe
        self._recorder = session.recorder
        self._stop = StopRequest()
        self._began = session.state.step, session.state.batches
        self._saved: tuple[int, Path] | None = None  # the last save: number of used batches, path
        self._clock = sole(SAVE_CLOCK_GROUP)(session.config.run)

    def run(self, resume: Any, *, allow_changes: bool) -> Summary:
        """Train to the end; see `HybridTrainer.fit`."""
        session = self._session
        resumed = self._resume(resume, allow_changes=allow_changes)
        self._began = session.state.step, session.state.batches
        session.begin()  # also if no step is left
        if leave_weights(self._data, self._observe):
            session.run.stash.set(FITTING, object())
        feed = Feed(self._data.train, session.data_state if resumed else None)
        with stop_on_signals() as self._stop, errors.ended_by(session.store.drain):
            session.run.stash.set(STOPPING, self._stop)
            try:
                if resumed:
                    self._evaluate_if_due()  # a stopped run may lack this evaluation
                self._train(feed)
                return self._finish()
            except _Stopped:
                self._leave()
            finally:
                session.run.stash.set(FITTING, None)

    def _train(self, feed: Feed) -> None:
        session, state = self._session, self._session.state
        total, batches = session.config.train.steps, iter(feed)
        while state.step < total and session.run.stash.get(STOP) is None:
            with self._saving_first():
                batch = next(batches)
            result = self._trainer.step(batch)
            session.data_state = feed.state_dict()
            if self._observe is not None:
                self._observe(result, state)
            if result.outcome is not Outcome.DEFERRED and state.step < total:
                self._save_if_due()
                self._evaluate_if_due()
            if self._stop.received is not None:
                self._leave()

    @contextmanager
    def _saving_first(self) -> Iterator[None]:
        """If the data raises an error, save the new progress, then raise the error again."""
        try:
            yield
        except DataError as error:
            if self._session.state.batches == self._began[1]:
                raise  # there is nothing new to save
            try:
                where = self._saved_where()
            except CheckpointError as failure:
                where = f"not saved: {failure}"
            msg = f"{error}; {where}"
            raise DataError(msg) from error.__cause__

    def _finish(self) -> Summary:
        session = self._session
        session.loop.settle()  # records the last row
        self._save()  # before the evaluation, which may raise
        summary = self._recorder.summary(session.state, self._validate(), session.digest())
        if self._stop.received is not None:
            self._leave()
        return summary

    # -- resuming and saving ----------------------------------------------------------------------

    def _resume(self, resume: Any, *, allow_changes: bool) -> bool:
        root = self._recorder.checkpoints
        if resume is None:
            if root is not None:
                require_no_run(root)
            return False
        path = resume
        if resume == "auto":
            if root is None:
                msg = "resume='auto' needs run.dir in the config"
                raise WrongCheckpointError(msg)
            path, warnings = checkpoint.newest_valid(root)
            for warning in warnings:
                CONSOLE.warning("%s", warning)
            if path is None:
                if warnings:
                    msg = f"no checkpoint in {root} can be loaded; set run.dir to start elsewhere"
                    raise CheckpointError(msg)
                return False
        self._trainer.load(path, allow_changes=allow_changes)
        return True

    def _save_if_due(self) -> None:
        session, step = self._session, self._session.state.step
        if self._clock.due(step):
            try:
                with self._clock.saving():
                    self._save()
            except CheckpointError as error:
                # The previous checkpoint is intact, so training goes on, such as on a full disk.
                session.run.log.error("checkpoint.failed", step=step, error=str(error))

    def _save(self) -> Path | None:
        root, state = self._recorder.checkpoints, self._session.state
        if root is None:
            return None
        if self._saved is None or self._saved[0] != state.batches:
            path = checkpoint.step_directory(root, state.step)
            self._trainer.save(path)
            if self._session.config.run.keep:
                checkpoint.prune(root, self._session.config.run.keep)
            self._saved = (state.batches, path)
        return self._saved[1]

    def _saved_where(self) -> str:
        path = self._save()
        return f"saved {path}; go on with --resume auto" if path else "not saved: no run.dir"

    def _leave(self) -> NoReturn:
        number, step = self._stop.received, self._session.state.step
        assert number is not None, "left without a signal"
        msg = f"stopped by signal {number} after update {step}: {self._saved_where()}"
        self._session.run.log.info("run.stopped", step=step, signal=number)
        raise Interrupted(number, msg)

    # -- evaluating -------------------------------------------------------------------------------

    def _evaluate_if_due(self) -> None:
        config, step = self._session.config, self._session.state.step
        every = config.eval.every
        if every and step and step % every == 0 and step < config.train.steps:
            self._validate()

    def _validate(self) -> float | None:
        if self._data.validation is None:
            return None
        if self._stop.received is not None:
            raise _Stopped
        session, step = self._session, self._session.state.step
        with self._saving_first():
            loss = self._trainer.evaluate(_Batches(self._data.validation, self._stop))
        phase = session.state.phase or session.state.schedule.phase
        if step == self._began[0]:
            self._recorder.forget_evaluation(step)
        measured = session.run.stash.get(MEASURED) or {}
        self._recorder.metrics(step, phase, {**measured, "val_loss": loss})
        if (evaluated := getattr(self._observe, "evaluated", None)) is not None:
            evaluated(step, loss)
        return loss


class _Batches:
    """Validation batches; the iteration raises `_Stopped` after a signal."""

    def __init__(self, batches: Any, stop: StopRequest) -> None:
        self._batches = batches
        self._stop = stop

    def __iter__(self) -> Iterator[Any]:
        for batch in guarded(self._batches, "validation"):
            if self._stop.received is not None:
                raise _Stopped
            yield batch
