"""The plugin: a run's own checkpoints are written by a thread."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import attrs

from neaptide import Plugin, hookimpl
from neaptide.api.steps import STOP
from neaptide.checkpoint import prune
from neaptide.checkpoint.files import WAY, at_once
from neaptide.checkpoint.manifest import STEP
from neaptide.checkpoint.safetensors_stream import PIECE
from neaptide.errors import CheckpointError, ModelError
from neaptide.run.rundir import checkpoint_root
from neaptide.run.signals import STOPPING
from neaptide_toolkit.optimizer_state import state_bytes

from .config import BackgroundSaveConfig
from .writing import BackgroundWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from neaptide import Ledger, ParameterStore, Phase, Run
    from neaptide.api.middleware import AroundSave
    from neaptide.checkpoint.files import Way, Writer

_FILES = 16
"""Files of a checkpoint, at most: the last buffer of each is not full."""


@attrs.define(eq=False)
class BackgroundSave(Plugin[BackgroundSaveConfig]):
    """Has the checkpoints of `fit` written while training goes on.

    What a user saves elsewhere is complete when `trainer.save` returns.
    """

    _run: Run = attrs.field(init=False)
    _root: Path | None = attrs.field(init=False, default=None)
    _writer: BackgroundWriter | None = attrs.field(init=False, default=None)
    """None if the run has no directory, and saves nothing by itself."""

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Find the run's checkpoints, and reserve buffers for weights and state."""
        self._run, self._root = run, checkpoint_root(run.config.run)
        if self._root is not None:
            most = int(self.config.buffer_gib * 2**30)
            self._writer = BackgroundWriter(min(most, _saved_bytes(store)))

    @hookimpl
    def around_save(self) -> AroundSave:
        """Copy a checkpoint of the run; write any other at once. Both wait for the previous one."""

        def save(following: Callable[..., Path], /, *, directory: Path) -> Path:
            try:
                self._finish()
            except CheckpointError as error:  # as `fit` does: the earlier checkpoints are intact
                self._run.log.error("checkpoint.failed", error=str(error))
            writer = self._writer
            if writer is None or directory.parent != self._root or not self._later(directory):
                return following(directory=directory)
            with _written_by(partial(_begin, writer, directory)):
                return following(directory=directory)

        return save

    def _later(self, directory: Path) -> bool:
        """Return whether `fit` goes on after this checkpoint."""
        named, stash = STEP.fullmatch(directory.name), self._run.stash
        stopping = stash.get(STOPPING)
        signalled = stopping is not None and stopping.received is not None
        if signalled or stash.get(STOP) is not None or sys.exc_info()[0] is not None:
            return False  # with an error of the data, `fit` saves and raises it
        return named is not None and int(named[1]) < self._run.config.train.steps

    def _finish(self) -> None:
        """Wait for the checkpoint that is being written, and delete those that it replaces."""
        if self._root is not None and self._writer is not None and self._writer.finish():
            keep = self._run.config.run.keep
            if keep:
                prune(self._root, keep)

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the buffers, if the run saves."""
        del phase
        held = 0 if self._writer is None else self._writer.bytes
        return ledger.add("background-save", "buffers", "host", held)

    @hookimpl
    def on_run_end(self) -> None:
        """Wait for the last checkpoint; CheckpointError if it could not be written."""
        self._finish()


def _saved_bytes(store: ParameterStore) -> int:
    """Return the bytes of buffers that hold weights and optimizer state, if it is known."""
    try:
        state = sum(state_bytes(store.optimizer).values())
    except ModelError:  # before the first update nobody knows
        return sys.maxsize
    return sum(span.bytes for span in store.spans()) + state + _FILES * PIECE


def _begin(
    writer: BackgroundWriter,
    wanted: Path,
    directory: Path,
    context: AbstractContextManager[Writer],
    fill: Callable[[Writer], None],
) -> None:
    if directory == wanted:
        writer.write(context, fill)
    else:  # frozen weights, to which the checkpoint refers
        at_once(directory, context, fill)


@contextmanager
def _written_by(way: Way) -> Iterator[None]:
    token = WAY.set(way)
    try:
        yield
    finally:
        WAY.reset(token)
