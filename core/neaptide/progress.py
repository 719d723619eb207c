"""What a run shows while it trains: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Protocol

import attrs
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .config import RunConfig
    from .state import TrainState
    from .steps import StepResult

_COLOURS = {"warmup": "yellow", "full": "blue", "predict": "magenta", "correct": "green"}
_SMOOTHING = 0.9
_MIB = 2**20


class Observer(Protocol):
    """What `fit` calls after each step."""

    def __call__(self, result: StepResult, state: TrainState) -> None:
        """Take note of a step."""


@attrs.define
class Smoothed:
    """An exponential average of the training loss, which is known one step late."""

    value: float | None = None

    def update(self, state: TrainState) -> str:
        """Take in the newest loss that has reached the host; return the average as text."""
        losses = state.history.losses
        if losses:
            last = losses[-1]
            kept = _SMOOTHING if self.value is not None else 0.0
            self.value = kept * (self.value or 0.0) + (1.0 - kept) * last
        return "-" if self.value is None else f"{self.value:.4f}"


@contextmanager
def progress(config: RunConfig, *, style: str, stream: IO[str]) -> Iterator[Observer | None]:
    """Give what to pass as `fit(observe=…)`.

    Args:
        config: the run's config.
        style: `auto` (a live line on a terminal, else plain), `plain` or `quiet`.
        stream: where to write.
    """
    if style == "quiet":
        yield None
    elif style == "plain" or not stream.isatty() or "NO_COLOR" in os.environ:
        yield _plain(config, stream)
    else:
        with _live(config, stream) as observe:
            yield observe


def _plain(config: RunConfig, stream: IO[str]) -> Observer:
    smoothed = Smoothed()
    last_phase = ""
    last_time = time.perf_counter()
    last_step = 0

    def observe(result: StepResult, state: TrainState) -> None:
        nonlocal last_phase, last_time, last_step
        loss = smoothed.update(state)
        if result.jump is not None:
            stream.write(f"step {result.step:>6}  {_jump(result)}\n")
        due = result.step % config.run.log_every == 0 and result.updated
        if due or result.phase.name != last_phase:
            now = time.perf_counter()
            each = (now - last_time) / max(1, result.step - last_step)
            stream.write(
                f"step {result.step:>6}/{config.train.steps}  {result.phase.name:<7}  loss {loss}  "
                f"{_memory(result)}  skipped {state.backward_skipped:.1%}  {each * 1000:.0f} ms\n"
            )
            last_time, last_step = now, result.step
        last_phase = result.phase.name
        stream.flush()

    return observe


@contextmanager
def _live(config: RunConfig, stream: IO[str]) -> Iterator[Observer]:
    smoothed = Smoothed()
    columns = (
        TextColumn("[{task.fields[colour]}]{task.fields[phase]:<7}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("{task.fields[memory]}"),
        TextColumn("skipped {task.fields[skipped]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream)) as shown:
        task = shown.add_task(
            "train",
            total=config.train.steps,
            phase="",
            colour="white",
            loss="-",
            memory="",
            skipped="0.0%",
        )

        def observe(result: StepResult, state: TrainState) -> None:
            if result.jump is not None:
                shown.console.print(f"step {result.step}  {_jump(result)}", highlight=False)
            shown.update(
                task,
                completed=result.step,
                phase=result.phase.name,
                colour=_COLOURS[result.phase.name],
                loss=smoothed.update(state),
                memory=_memory(result),
                skipped=f"{state.backward_skipped:.1%}",
            )

        yield observe


def _jump(result: StepResult) -> str:
    jump = result.jump
    assert jump is not None, "asked for a step with a jump"
    if jump.accepted:
        return f"predict  jump over {jump.horizon} updates accepted"
    return f"predict  jump refused: {jump.reason}"


def _memory(result: StepResult) -> str:
    if result.memory is None:
        return ""
    host = f"host {result.memory.host_bytes / _MIB:.0f} MiB"
    device = result.memory.device_bytes
    return host if device is None else f"device {device / _MIB:.0f} MiB, {host}"
