"""The line of a run: what it says, that it fits its terminal, and that it says nothing unknown."""

from __future__ import annotations

import io
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from neaptide import CORRECT, FULL, PREDICT, WARMUP, Phase, PhaseSchedule, StepResult
from neaptide.api.memory import MemorySample
from neaptide.api.steps import Outcome
from neaptide.loop.state import TrainState
from neaptide_toolkit.displays import Figures
from neaptide_toolkit.displays.figures import _short
from neaptide_toolkit.displays.live import _Line, fitting

MEMORY = MemorySample(device_bytes=70 << 30, host_bytes=120 << 30)


def never() -> Any:
    """Stand where a value of the device is read."""
    pytest.fail("the display waited for the device")


def result(step: int, phase: Phase = FULL, **given: Any) -> StepResult:
    """Return a step whose loss is still on the device."""
    facts = {"jump": None, "memory": MEMORY, "seconds": 0.1, "tokens": None, "lr": None, **given}
    return StepResult(step, phase, Outcome.APPLIED, read_loss=never, read_norm=never, **facts)


def state(step: int = 0, *losses: float) -> TrainState:
    """Return a run after `step` updates of which `losses` are known."""
    schedule = PhaseSchedule(
        warmup_steps=0, full_steps=9, correct_steps=0, correction_interval=1, predicts=False
    )
    made = TrainState(schedule, step=step)
    for loss in losses:
        made.history.record(loss, None, 0.5)
    return made


def drawn(columns: int, total: int, phase: str, figures: dict[str, str]) -> str:
    """Return the line on a terminal of `columns` columns before the last update."""
    console = Console(file=io.StringIO(), width=columns)
    bar = Progress(console=console)
    given = {"colour": "blue", "phase": phase, "figures": figures}
    bar.add_task("", total=total, completed=total - 1, **given)
    return _Line(console).render(bar.tasks[0]).plain


def figures_of(total: int, loss: float, **facts: Any) -> dict[str, str]:
    """Return the figures of a run that has made two updates."""
    figures = Figures(total)
    figures.take(result(total - 2, **facts), state(total - 2, loss))
    figures.take(result(total - 1, **facts), state(total - 1, loss))
    return figures.known(result(total - 1, **facts), state(total - 1, loss))


@pytest.mark.parametrize("phase", [WARMUP, FULL, PREDICT, CORRECT], ids=str)
@pytest.mark.parametrize("total", [12, 500, 1_000_000])
@pytest.mark.parametrize("left", ["250 ms left", "53.7 s left", "1:02:03 left", "100:02:03 left"])
def test_eighty_columns_hold_phase_place_loss_rate_tokens_and_time_left(
    phase: Phase, total: int, left: str
) -> None:
    figures = figures_of(total, 12.3456, lr=0.000123456, tokens=16_384)
    line = drawn(80, total, phase.name, {**figures, "left": left})
    assert len(line) <= 77  # `^C` has room behind it
    assert line.startswith(phase.name)
    assert line.endswith(
        f"{total - 1:>{len(str(total))}}/{total}  loss 12.3456  lr 1.23e-4  164k tok/s  {left}"
    )


@given(
    columns=st.integers(1, 300),
    total=st.integers(3, 10**9),
    phase=st.text("abcdefgh", max_size=30),
    lr=st.none() | st.floats(0, 1e9),
    tokens=st.none() | st.integers(1, 10**12),
    loss=st.floats(),
)
def test_the_line_never_wraps(
    columns: int, total: int, phase: str, lr: float | None, tokens: int | None, loss: float
) -> None:
    line = drawn(columns, total, phase, figures_of(total, loss, lr=lr, tokens=tokens))
    assert len(line) <= max(1, columns - 3)
    assert "\n" not in line


def test_a_wide_terminal_shows_all_figures() -> None:
    figures = figures_of(500, 2.0, lr=0.1, tokens=10)
    line = drawn(200, 500, "full", figures)
    assert [] == [text for name, text in figures.items() if text not in line and name != "pace"]
    assert "━" * 20 in line


def test_a_figure_has_no_place_before_it_is_known() -> None:
    figures = Figures(1000)
    step = attrs.evolve(result(1), memory=None)
    figures.take(step, state(1))
    assert "jumps 0  skipped 0.0%" == figures.text(step, state(1))
    figures.take(attrs.evolve(step, step=2, lr=0.1), state(1, 2.0))
    known = figures.known(attrs.evolve(step, step=2, lr=0.1), state(2, 2.0))
    assert ["loss", "lr", "pace", "left", "jumps", "skipped"] == list(known)


def test_tokens_are_counted_over_the_newest_steps() -> None:
    figures, known = Figures(1000), state(3, 1.0)
    for step in range(100):
        figures.take(result(step, tokens=100 if step < 36 else 200), known)
    assert "2.00k tok/s" == figures.known(result(100), known)["tokens"]


def test_without_tokens_the_line_shows_the_time_of_a_step() -> None:
    shown = figures_of(500, 2.0)
    assert "tokens" not in shown
    assert "500 ms/step" in fitting(shown, 60)
    assert "500 ms/step" not in fitting(figures_of(500, 2.0, tokens=5), 60)


@given(st.floats(1e-3, 1e14))
def test_a_short_number_is_the_number(number: float) -> None:
    text = _short(number)
    scale = {"k": 1e3, "M": 1e6, "G": 1e9}.get(text[-1], 1.0)
    assert float(text.rstrip("kMG")) * scale == pytest.approx(number, rel=0.006, abs=0.0051)
    assert float(text.rstrip("kMG")) < 1000 or text[-1] == "G"


@pytest.mark.parametrize(
    ("rate", "text"),
    [(0.0, "0"), (0.1, "0.1"), (3e-4, "3e-4"), (1.2345e-5, "1.23e-5"), (1e-3, "0.001")],
)
def test_a_rate_is_short(rate: float, text: str) -> None:
    assert f"lr {text}" == Figures(9).known(result(1, lr=rate), state())["lr"]
