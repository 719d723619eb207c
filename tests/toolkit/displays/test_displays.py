"""What a run shows: the figures, when a line is due, and what a failing stream costs."""

from __future__ import annotations

import io
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support import CYCLE, tiny_trainer

from neaptide import FULL, PhaseSchedule, RunConfig, StepResult
from neaptide.api.memory import MemorySample
from neaptide.api.steps import Jump, Outcome
from neaptide.config import structure
from neaptide.io.streams import Tolerant, discard
from neaptide.io.units import duration, size
from neaptide.loop.state import TrainState
from neaptide_toolkit.displays import Budget, Figures, budget_of, progress
from neaptide_toolkit.machine import facts as machine
from neaptide_toolkit.pages.text import in_unit

TIMES = re.compile(r"(  loss [\d.]+)?  lr \S+(  \S+( m?s)?/step)?(  \S+( m?s)? left)?")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def never() -> Any:
    """Stand where a value of the device is read."""
    pytest.fail("the display waited for the device")


def result(step: int, **given: Any) -> StepResult:
    """Return a step whose loss is still on the device."""
    facts = {
        "jump": None,
        "memory": None,
        "seconds": 0.1,
        "outcome": Outcome.APPLIED,
        "tokens": None,
        "lr": None,
        **given,
    }
    return StepResult(step=step, phase=FULL, read_loss=never, read_norm=never, **facts)


def state(step: int = 0, *losses: float) -> TrainState:
    """Return a run after `step` updates of which `losses` are known."""
    schedule = PhaseSchedule(
        warmup_steps=0, full_steps=9, correct_steps=0, correction_interval=1, predicts=False
    )
    made = TrainState(schedule, step=step)
    for loss in losses:
        made.history.record(loss, None, 0.5)
    return made


def config(steps: int = 12, **run: Any) -> RunConfig:
    """Return the config of a run."""
    return structure({"train": {"steps": steps}, "run": run}, {})


def shown(style: str, stream: io.StringIO) -> str:
    """Return what a run of twelve updates through all phases shows."""
    table = {
        "train": {"steps": 12},
        "phases": CYCLE,
        "plugins": {"predictor-drift": {"min_window": 4, "sample_every": 1}},
    }
    trainer, batches = tiny_trainer(table)
    with trainer, progress(config(log_every=4), style=style, stream=stream) as display:
        trainer.fit(batches, observe=display)
        display.evaluated(12, 0.5)
    return stream.getvalue()


def test_lines_come_at_intervals_phases_jumps_and_evaluations() -> None:
    lines = shown("plain", io.StringIO()).splitlines()
    assert [
        "step  1/12  warmup   jumps 0  skipped 0.0%",
        "step  3/12  full     jumps 0  skipped 0.0%",
        "step  4/12  full     jumps 0  skipped 0.0%",
        "step  7/12  predict  jump over 1 updates accepted",
        "step  7/12  correct  jumps 1  skipped 12.5%",
        "step  8/12  correct  jumps 1  skipped 11.1%",
        "step  9/12  full     jumps 1  skipped 10.0%",
        "step 12/12  full     jumps 1  skipped 7.7%",
        "step 12/12  full     validation loss 0.5000",
    ] == [TIMES.sub("", line) for line in lines]


FIRST = "step  1/12  warmup   lr 0.01  jumps 0  skipped 0.0%\n"


def test_a_stream_that_is_no_terminal_gets_the_plain_lines() -> None:
    assert shown("auto", io.StringIO()).startswith(FIRST)


def test_a_terminal_that_cannot_move_its_cursor_gets_the_plain_lines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    assert shown("auto", Terminal()).startswith(FIRST)


COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7])[;m]")


@pytest.mark.parametrize("colours", [True, False])
def test_a_line_that_changes_has_colours_unless_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, *, colours: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    if colours:
        monkeypatch.delenv("NO_COLOR", raising=False)
    else:
        monkeypatch.setenv("NO_COLOR", "1")
    stream = Terminal()
    with progress(config(), style="auto", stream=stream) as display:
        display(result(5), state(5, 2.0))
    text = stream.getvalue()
    assert "\x1b[?25l" in text  # the cursor is hidden: it is live
    assert colours == bool(COLOUR.search(text))
    assert "5/12" in text


def test_quiet_shows_nothing() -> None:
    assert not shown("quiet", Terminal())


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_a_terminal_gets_a_line_that_changes(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    stream = Terminal()
    with progress(config(), style="auto", stream=stream) as display:
        memory = MemorySample(device_bytes=3 << 30, host_bytes=1 << 29)
        display(result(5, memory=memory), state(5, 2.0))
        display.evaluated(5, 1.25)
    text = stream.getvalue()
    assert "\x1b[34mfull" in text
    assert "\x1b[34m━" in text  # the bar has the colour of the phase
    plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", " ", text).split())
    assert "step 5 validation loss 1.2500" in plain
    figures = ["loss 2.0000", "5/12"]
    figures += ["500 ms/step"] if columns >= 60 else []
    figures += ["skipped 0.0%", "jumps 0", "device 3.0 GiB"] if columns >= 200 else []
    assert [] == [figure for figure in figures if figure not in plain]
    assert max(map(len, re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "\n", text).split("\n"))) <= columns


def test_memory_is_shown_against_its_budget() -> None:
    memory = MemorySample(device_bytes=3 << 30, host_bytes=430 << 20)
    budget = Budget(host=47 << 29, device=80 << 30)
    text = Figures(9, budget).text(result(1, memory=memory), state(1))
    assert text.endswith("  device 3.00/80.0 GiB, host 0.42/23.5 GiB")
    alone = MemorySample(device_bytes=None, host_bytes=430 << 20)
    assert "  host 430.0 MiB" in Figures(9).text(result(1, memory=alone), state(1))


def test_the_budget_of_the_host_is_the_smaller_of_memory_and_group() -> None:
    memory = machine.memory()
    limits = [memory.total, memory.group.limit if memory.group else None]
    expected = min(limit for limit in limits if limit is not None)
    assert Budget(host=expected) == budget_of(torch.device("cpu"))


class Broken(Terminal):
    """A terminal that was closed: nothing can be written to it any more."""

    def __init__(self, file: Any) -> None:
        super().__init__()
        self.file = file

    def write(self, text: str) -> int:
        raise OSError(5, "Input/output error")

    def fileno(self) -> int:
        return int(self.file.fileno())


@pytest.mark.parametrize("style", ["auto", "plain"])
def test_a_terminal_that_was_closed_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, style: str
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with (tmp_path / "file").open("w") as file:
        assert not shown(style, Broken(file))


def test_a_refused_jump_says_why() -> None:
    jump = Jump(
        accepted=False,
        horizon=5,
        scale=0.0,
        loss_before=1.0,
        loss_after=2.0,
        norm=1.0,
        confidence=None,
        reason="the probe loss rose",
        seconds=0.1,
    )
    stream = io.StringIO()
    with progress(config(), style="plain", stream=stream) as display:
        display(result(3, jump=jump), state(3))
    expected = "step  3/12  predict  jump over 5 updates refused: the probe loss rose"
    assert expected == stream.getvalue().splitlines()[0]


def test_a_skipped_update_brings_no_line() -> None:
    stream = io.StringIO()
    with progress(config(log_every=1), style="plain", stream=stream) as display:
        display(result(1), state(1))
        display(result(2, outcome=Outcome.SKIPPED), state(2))
        display(result(3), state(3))
    assert ["1", "3"] == re.findall(r"(?m)^step +(\d+)", stream.getvalue())


def test_the_display_never_waits_for_the_device() -> None:
    for style, stream in (("plain", io.StringIO()), ("auto", Terminal())):
        with progress(config(log_every=1), style=style, stream=stream) as display:
            display(result(1), state(1))
            display(result(2), state(2, 0.75))
        assert "loss 0.7500" in stream.getvalue()


def test_a_resumed_run_measures_its_own_pace() -> None:
    figures = Figures(total=1000)
    figures.take(result(401), state(400, 1.0))
    first = figures.text(result(401), state(401, 1.0))
    assert "loss 1.0000  500 ms/step  jumps 0  skipped 0.0%" == first


def test_a_loss_that_is_not_finite_shows_and_passes() -> None:
    figures, known = Figures(total=9), state()
    seen = []
    for step, loss in enumerate((1.0, math.nan, 2.0, math.inf, 3.0), start=1):
        known.history.record(loss, None, 0.1)
        figures.take(result(step), known)
        seen.append(figures.text(result(step), state(step)).partition("  ")[0])
    assert ["loss 1.0000", "loss nan", "loss 2.0000", "loss inf", "loss 3.0000"] == seen


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 3))
def test_the_average_lies_among_the_losses(losses: list[float], times: int) -> None:
    figures, known = Figures(total=99), state()
    for step, loss in enumerate(losses, start=1):
        known.history.record(loss, None, 0.1)
        for _ in range(times):  # steps that brought no new loss leave the average alone
            figures.take(result(step), known)
    shown_loss = float(figures.text(result(1), state(1)).split()[1])
    expected = losses[0]
    for loss in losses[1:]:
        expected = 0.9 * expected + 0.1 * loss
    assert math.isclose(expected, shown_loss, rel_tol=1e-3, abs_tol=1e-4)


def test_a_broken_pipe_silences_the_display_and_nothing_else() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as stream:
        with progress(config(), style="plain", stream=stream) as display:
            display(result(1), state(1))
            display.evaluated(1, 1.0)
        stream.write("and no error when it is closed\n")


def test_discard_empties_a_stream_that_failed() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as stream:
        stream.write("lost")
        with pytest.raises(OSError, match="No space left"):
            stream.flush()
        discard(stream)
        stream.flush()


class Notebook(io.StringIO):
    """A stream without a descriptor whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError

    def flush(self) -> None:
        raise BrokenPipeError


def test_a_stream_without_a_descriptor_that_fails_ends_nothing() -> None:
    stream = Tolerant(Notebook())
    for _ in range(2):
        assert 4 == stream.write("lost")
        stream.flush()


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 29, "1.5 GiB"),
        (1 << 52, "4096.0 TiB"),
    ],
)
def test_bytes_are_written_for_people(nbytes: int, text: str) -> None:
    assert text == size(nbytes)


@given(st.integers(0, 1 << 60) | st.floats(0, 1 << 60))
@example(1023.6)
@example((1 << 20) - 1)
@example((1 << 50) - 1)
def test_a_written_size_is_the_size(nbytes: float) -> None:
    number, unit = size(nbytes).split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(unit)
    # What a smaller unit would have rounded up is written in this one.
    assert abs(float(number) * scale - nbytes) <= (0.5 if unit == "B" else 0.0501 * scale)
    assert float(number) < 1024 or unit == "TiB"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 ms"),
        (0.0123, "12 ms"),
        (1.5, "1.5 s"),
        (60.0, "1:00"),
        (725.4, "12:05"),
        (3723.0, "1:02:03"),
        (360000.0, "100:00:00"),
    ],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert text == duration(seconds)


@given(st.floats(0, 1e6))
@example(0.9999)
@example(59.97)
@example(3599.6)
def test_a_written_time_is_the_time(seconds: float) -> None:
    text = duration(seconds)
    number, _, unit = text.partition(" ")
    if unit:
        scale, most = (0.001, 1000) if unit == "ms" else (1, 60)
        assert float(number) < most
        assert abs(float(number) * scale - seconds) <= 0.0501 * scale * (10 if unit == "ms" else 1)
    else:
        *higher, last = map(int, text.split(":"))
        assert last < 60
        assert all(part < 60 for part in higher[1:])
        whole = sum(part * 60**power for power, part in enumerate((last, *reversed(higher))))
        assert abs(whole - seconds) <= 0.5


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0009999, "1.00 ms"), (0.9999, "1.00 s"), (9.999, "10.0 s"), (59.97, "1:00"), (61, "1:01")],
)
def test_times_in_a_report_are_carried_over_too(seconds: float, text: str) -> None:
    assert text == in_unit(seconds, "seconds")
