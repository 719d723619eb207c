"""Turns the hooks of a run into points of curves, and passes these to a tool."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.api.rng import capture, restore
from neaptide.config import unstructure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide import Phase, Run, StepRecord, StepResult

C = TypeVar("C")


class LogSink(Protocol):
    """Where the points of a run go. A method that raises costs the run its logger, nothing else."""

    def begin(self, step: int) -> None:
        """The updates after `step` follow: at the start, at a resume and after `trainer.load`."""

    def phase(self, step: int, name: str) -> None:
        """Add the name of the phase that begins with update `step`."""

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point at `step` to the curve of each name."""

    def close(self, error: BaseException | None) -> None:
        """Write what is pending. `error` ended the run; None: the run ended well."""


@attrs.define(eq=False)
class LoggerPlugin(Plugin[C]):
    """An observer that opens a sink at the first step, and passes all records to it.

    The config has `every`: updates between two points of loss, norm, time and memory. The first
    step, not the start of the run, opens the sink: then it is known whether the run was resumed,
    and the files of an earlier run have been moved away.
    """

    learning_rate: ClassVar[str] = "train/learning_rate"
    """The name of the curve of the learning rate."""
    _open: Callable[[], LogSink] | None = attrs.field(init=False, default=None)
    _sink: LogSink | None = attrs.field(init=False, default=None)

    @abstractmethod
    def prepare(self, run: Run) -> Callable[[], LogSink] | None:
        """Check what can be checked before training, and return what opens the sink.

        None: there is nowhere to write to. Raise ConfigError if the tool cannot be used.
        """

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Call `prepare`."""
        with _own_random_numbers():
            self._open = self.prepare(run)

    @hookimpl
    def on_phase_enter(self, phase: Phase, previous: Phase | None, step: int) -> None:
        """Open the sink at the first step; add the phase."""
        if self._sink is None and self._open is not None:
            with _own_random_numbers():
                self._sink = self._open()
        if self._sink is not None:
            if previous is None:
                self._sink.begin(step)
            self._sink.phase(step + 1, phase.name)

    @hookimpl
    def on_record(self, record: StepRecord) -> None:
        """Add the points of an update or a jump."""
        every: int = getattr(self.config, "every")  # noqa: B009 - `C` does not tell it
        if self._sink is not None and (record.was_predicted or record.step % every == 0):
            self._sink.numbers(record.step, _points(record))

    @hookimpl
    def after_step(self, step: int, result: StepResult) -> None:
        """Add a jump's confidence, and its horizon as `jump/accepted` or `jump/refused`."""
        jump = result.jump
        if jump is not None and self._sink is not None:
            verdict = "accepted" if jump.accepted else "refused"
            values = {f"jump/{verdict}": float(jump.horizon), "jump/confidence": jump.confidence}
            self._sink.numbers(step, _present(values))

    @hookimpl
    def on_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the learning rate, plugins' metrics and validation losses."""
        if self._sink is not None:
            self._sink.numbers(step, points_of_metrics(metrics, self.learning_rate))

    @hookimpl
    def on_run_end(self, error: BaseException | None) -> None:
        """Close the sink."""
        sink, self._sink, self._open = self._sink, None, None
        if sink is not None:
            sink.close(error)


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """The tool may draw, such as a name: the run must draw the same numbers as without it."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


def check_installed(module: str, install: str, plugin: str) -> None:
    """Raise ConfigError if `module` cannot be imported; `install` is what pip installs."""
    if find_spec(module) is None:
        msg = f'{module} is not installed: pip install "{install}" @ plugins.{plugin}'
        raise ConfigError(msg)


def settings_of(run: Run) -> dict[str, Any]:
    """Return the whole configuration of a run as plain tables, as in its config.toml."""
    plain: dict[str, Any] = unstructure(run.config)
    return plain


def points_of_metrics(metrics: Mapping[str, float], learning_rate: str) -> dict[str, float]:
    """Return a line of metrics.jsonl by the names of the curves."""
    own = {"lr": learning_rate, "val_loss": "eval/loss"}
    return {own.get(name, name.replace(".", "/", 1)): value for name, value in metrics.items()}


def _points(record: StepRecord) -> dict[str, float]:
    """Return the points of a record by name. A record of a jump has only the loss after it."""
    points: dict[str, float | None] = {f"loss/{record.phase}": record.loss}
    if not record.was_predicted:
        points |= {
            "train/loss": record.loss,
            "train/grad_norm": record.grad_norm,
            "train/seconds": record.seconds,
            "memory/device_bytes": record.device_bytes,
            "memory/host_bytes": record.host_bytes,
        }
    return _present(points)


def _present(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}
