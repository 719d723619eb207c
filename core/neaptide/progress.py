"""What a run shows while it trains: a live line on a terminal, elsewhere plain lines."""

from __future__ import annotations

import math
import os
import sys
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, Protocol

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import RunConfig
    from .history import History
    from .memory import MemorySample
    from .state import TrainState
    from .steps import StepResult

_COLOURS = {"warmup": "yellow", "full": "blue", "predict": "magenta", "correct": "green"}
_SMOOTHING = 0.9
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Progress(Protocol):
    """Shows a run: what `fit` takes as `observe`, and is told of evaluations besides."""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show a step. Reads no loss that has not reached the host."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show the mean loss on the validation data after update `step`."""


@contextmanager
def progress(config: RunConfig, *, style: str, stream: IO[str]) -> Iterator[Progress]:
    """Give the display of a run, and take it down at the end.

    Args:
        config: the run's config.
        style: `auto` (a live line on a terminal, else plain lines), `plain` or `quiet`. With
            NO_COLOR in the environment, `auto` is plain.
        stream: where to write.
    """
    dumb = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if style == "quiet":
        yield _Quiet()
    elif style == "auto" and stream.isatty() and not dumb:
        with _live(config, stream) as shown:
            yield shown
    else:
        yield _Plain(Figures(config.train.steps), config.run.log_every, stream)


def size(nbytes: float) -> str:
    """Write bytes for people: `1.5 GiB`."""
    power = min(int(math.log2(max(nbytes, 1))) // 10, len(_UNITS) - 1)
    return f"{nbytes / 1024**power:.{1 if power else 0}f} {_UNITS[power]}"


def duration(seconds: float) -> str:
    """Write a time for people: `250 ms`, `1.5 s`, `12:05`, `1:02:03`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def discard(stream: IO[str]) -> None:
    """Let everything written to `stream` from here on go nowhere.

    For a stream that failed: what it could not write is still in its buffer, and would fail once
    more when Python exits.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


@attrs.define(eq=False)
class Figures:
    """The figures of a run as text: an average of the loss, pace, what remains."""

    total: int
    """Updates in the whole run."""
    _loss: float | None = attrs.field(init=False, default=None)
    _averaged: int = attrs.field(init=False, default=0)  # the update last taken into it
    _began: tuple[int, float] | None = attrs.field(init=False, default=None)

    def take(self, step: int, history: History) -> None:
        """Take in a step, and the newest loss that has reached the host."""
        if self._began is None:
            self._began = (step, time.perf_counter())
        if history.updates == self._averaged:
            return
        self._averaged = history.updates
        newest = history.losses[-1]
        # A loss that is not finite shows, and the average begins anew after it.
        old = newest if self._loss is None or not math.isfinite(self._loss) else self._loss
        self._loss = _SMOOTHING * old + (1.0 - _SMOOTHING) * newest

    def text(self, result: StepResult, state: TrainState) -> str:
        """Return the figures after a step in one line; `-` for one that is not known yet."""
        times = state.history.seconds
        pace = duration(sum(times) / len(times)) if times else "-"
        parts = (
            f"loss {'-' if self._loss is None else f'{self._loss:.4f}'}",
            _memory(result.memory),
            f"skipped {state.backward_skipped:.1%}",
            f"jumps {state.jumps}",
            f"{pace}/step",
            f"{self._left(state.step)} left",
        )
        return "  ".join(part for part in parts if part)

    def _left(self, step: int) -> str:
        if self._began is None or step == self._began[0]:
            return "-"
        first, began = self._began
        return duration((time.perf_counter() - began) / (step - first) * (self.total - step))


class _Quiet:
    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Show nothing."""

    def evaluated(self, step: int, loss: float) -> None:
        """Show nothing."""


class _Plain:
    """A line every `every` updates, and at each change of phase, jump and evaluation."""

    def __init__(self, figures: Figures, every: int, stream: IO[str]) -> None:
        self._figures = figures
        self._every = every
        self._stream = stream
        self._phase = ""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Write the lines that are due."""
        self._figures.take(result.step, state.history)
        if result.jump is not None:
            self._line(result.step, "predict", _jump(result))
        if result.phase.name != self._phase or (result.updated and result.step % self._every == 0):
            self._phase = result.phase.name
            self._line(result.step, self._phase, self._figures.text(result, state))

    def evaluated(self, step: int, loss: float) -> None:
        """Write a line."""
        self._line(step, self._phase, _evaluation(loss))

    def _line(self, step: int, phase: str, text: str) -> None:
        width = len(str(self._figures.total))
        try:
            self._stream.write(f"step {step:>{width}}/{self._figures.total}  {phase:<7}  {text}\n")
            self._stream.flush()
        except OSError:
            # A reader that has gone (`| head`) or a full disk must not end the training.
            discard(self._stream)


@contextmanager
def _live(config: RunConfig, stream: IO[str]) -> Iterator[Progress]:
    from rich import progress as bars  # noqa: PLC0415 - verbs that show no progress start faster
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    with bars.Progress(
        bars.TextColumn("[{task.fields[colour]}]{task.fields[phase]:<7}"),
        bars.BarColumn(bar_width=20),
        bars.MofNCompleteColumn(),
        # On a narrow terminal it wraps, and all of it can be read.
        bars.TextColumn("{task.fields[figures]}", table_column=Column(no_wrap=False)),
        console=Console(file=stream),
        # Lines for the terminal go above the bar; those redirected to a file go there still.
        redirect_stdout=sys.stdout.isatty(),
        redirect_stderr=sys.stderr.isatty(),
    ) as bar:
        task = bar.add_task(
            "",
            total=config.train.steps,
            colour="white",
            phase="",
            figures="waiting for the first update",
        )
        yield _Live(Figures(config.train.steps), bar, task)


class _Live:
    """One line that changes in place, and a lasting one for each jump and evaluation."""

    def __init__(self, figures: Figures, bar: Any, task: Any) -> None:
        self._figures = figures
        self._bar = bar
        self._task = task

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Bring the line up to date."""
        self._figures.take(result.step, state.history)
        if result.jump is not None:
            self._line(result.step, _jump(result))
        self._bar.update(
            self._task,
            completed=result.step,
            phase=result.phase.name,
            colour=_COLOURS.get(result.phase.name, "white"),
            figures=self._figures.text(result, state),
        )

    def evaluated(self, step: int, loss: float) -> None:
        """Write a line."""
        self._line(step, _evaluation(loss))

    def _line(self, step: int, text: str) -> None:
        self._bar.console.print(f"step {step}  {text}", highlight=False, markup=False)


def _evaluation(loss: float) -> str:
    return f"validation loss {loss:.4f}"


def _jump(result: StepResult) -> str:
    jump = result.jump
    assert jump is not None, "asked for a step with a jump"
    if jump.accepted:
        return f"jump over {jump.horizon} updates accepted"
    return f"jump over {jump.horizon} updates refused: {jump.reason}"


def _memory(memory: MemorySample | None) -> str:
    if memory is None:
        return ""
    host = f"host {size(memory.host_bytes)}"
    return host if memory.device_bytes is None else f"device {size(memory.device_bytes)}, {host}"
