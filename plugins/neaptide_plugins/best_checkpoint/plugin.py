"""The plugin: judges each evaluation, and keeps a copy of the best checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.api.steps import MEASURED, STOP
from neaptide.checkpoint import step_directory
from neaptide.errors import CheckpointError, suggest
from neaptide.run.rundir import checkpoint_root
from neaptide_toolkit.saved_form import counter

from .best import Best
from .config import BestCheckpointConfig
from .copying import copy_checkpoint, step_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from neaptide import Run

NAME = "best"
"""The name of the copy, beside the run's checkpoints."""


@attrs.define(eq=False)
class BestCheckpoint(Plugin[BestCheckpointConfig]):
    """Copies what `fit` has saved just before the evaluation, so nothing is saved twice."""

    _run: Run = attrs.field(init=False)
    _root: Path | None = attrs.field(init=False, default=None)
    _best: Best = attrs.field(init=False, factory=Best)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Find the run's checkpoints; ConfigError if an evaluation may have none."""
        self._run, self._root = run, checkpoint_root(run.config.run)
        every, saves = run.config.eval.every, run.config.run.checkpoint_every
        if self._root is not None and every and (not saves or every % saves):
            msg = (
                f"best-checkpoint needs a checkpoint at each evaluation: set "
                f"run.checkpoint_every = {every}, or another divisor of eval.every = {every} "
                f"(got {saves}) @ run.checkpoint_every"
            )
            raise ConfigError(msg)

    @hookimpl
    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Judge an evaluation of `fit`. If it is the best, copy its checkpoint."""
        if "val_loss" not in metrics:
            return
        value = self._value(metrics)
        before, self._best = self._best, self._best.after(step, value, self.config.mode)
        if self._best.step == step != before.step:
            self._keep(step, value)
        elif self._is_over and self._best != before:
            self._run.stash.set(STOP, self._why)
            self._run.log.info("run.ends_early", step=step, reason=self._why)

    @property
    def _is_over(self) -> bool:
        early = (self._best.evaluated or 0) < self._run.config.train.steps
        return early and 0 < self.config.patience <= self._best.since

    @property
    def _why(self) -> str:
        return f"no better {self.config.metric} in {self._best.since} evaluations"

    def _value(self, metrics: Mapping[str, float]) -> float:
        name = self.config.metric
        measured = self._run.stash.get(MEASURED) or {}
        known = {**measured, "val_loss": metrics["val_loss"]}
        if name not in known:
            msg = (
                f"no evaluation measures {name!r}{suggest(name, known)}; there is "
                f"{', '.join(known)} @ plugins.best-checkpoint.metric"
            )
            raise ConfigError(msg)
        return known[name]

    def _keep(self, step: int, value: float) -> None:
        facts: dict[str, Any] = {"step": step, "metric": self.config.metric, "value": value}
        if self._root is None:
            self._run.log.warning("best.not_kept", **facts, error="the run has no run.dir")
            return
        source, target = step_directory(self._root, step), self._root / NAME
        try:
            # A run that goes on from the copy need not have the original any more.
            if source.exists() or step_of(target) != step:
                copy_checkpoint(source, target)
        except CheckpointError as error:  # the disk is full, for example: training goes on
            self._run.log.error("best.not_kept", **facts, error=str(error))
        else:
            self._run.log.info("best.kept", **facts, path=str(target))

    def state_dict(self) -> dict[str, Any]:
        """Return the best value, its update, and how many evaluations came later."""
        return attrs.asdict(self._best)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        value = state["value"]
        if value is not None and not isinstance(value, int | float):
            msg = f"value must be a number (got {value!r:.40})"
            raise ValueError(msg)
        steps = {
            name: None if state[name] is None else counter(state, name)
            for name in ("step", "evaluated")
        }
        self._best = Best(value=value, since=counter(state, "since"), **steps)

    def report(self) -> str | None:
        """Return the best evaluation, and where its checkpoint is."""
        best = self._best
        if best.step is None:
            return None
        later = f"{best.since} evaluation{'s' * (best.since != 1)} since"
        text = f"best {self.config.metric} {best.value:.6g} at update {best.step} ({later})"
        if self._is_over:
            text = f"ended early, after update {best.evaluated}: {self._why}\n{text}"
        if self._root is not None:
            copy, found = self._root / NAME, step_of(self._root / NAME)
            if found == best.step:
                return f"{text}\nkept in {copy}"
            text += f"\nnot kept: {copy} " + (
                "is not there" if found is None else f"is of update {found}"
            )
        return text
