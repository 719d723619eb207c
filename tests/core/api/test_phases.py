"""The fixed cycle of phases, and looking ahead in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from hypothesis import given
from hypothesis import strategies as st

import neaptide_plugins
from neaptide import CORRECT, FULL, PREDICT, WARMUP, Phase, PhaseSchedule
from neaptide.api.phases import PHASES, TRAINED, TrainedPhase
from neaptide_plugins.optimizer_offload.ahead import steps_until

schedules = st.builds(
    PhaseSchedule,
    warmup_steps=st.integers(0, 5),
    full_steps=st.integers(1, 6),
    correct_steps=st.integers(0, 4),
    correction_interval=st.integers(1, 20),
    predicts=st.booleans(),
)


def schedule(**changes: Any) -> PhaseSchedule:
    """Return a short cycle: 2 warmup, 3 full, 2 correct."""
    lengths = {"warmup_steps": 2, "full_steps": 3, "correct_steps": 2, "correction_interval": 10}
    return PhaseSchedule(**{**lengths, "predicts": True, **changes})


def test_the_trained_phases_are_those_with_a_backward_by_name_and_by_type() -> None:
    assert tuple(name for name, phase in PHASES.items() if phase.runs_backward) == TRAINED
    assert get_args(TrainedPhase) == TRAINED


def test_no_plugin_writes_the_trained_phases_down_again() -> None:
    plugins = Path(next(iter(neaptide_plugins.__path__)))
    sources = {path: path.read_text(encoding="utf-8") for path in plugins.rglob("*.py")}
    assert sources
    assert [] == [path for path, text in sources.items() if '"warmup", "full", "correct"' in text]


def walk(at: PhaseSchedule, steps: int, horizon: int | None = 10) -> list[str]:
    """Return the phases of `steps` steps; jumps stand for `horizon` updates, None declines all."""
    seen = []
    for _ in range(steps):
        phase = at.due()
        seen.append(phase.name)
        at = at.enter(phase)
        if not phase.applies_prediction:
            at = at.updated()
        elif horizon is None:
            at = at.declined()
        else:
            at = at.jumped(horizon)
    return seen


def advanced(at: PhaseSchedule, updates: int) -> PhaseSchedule:
    """Return the schedule after `updates` ordinary updates."""
    while updates:
        phase = at.due()
        at = at.enter(phase)
        if phase.applies_prediction:
            at = at.jumped(at.correction_interval)
        else:
            at, updates = at.updated(), updates - 1
    return at


def test_cycle_is_warmup_then_full_predict_correct() -> None:
    """The phases of the first two rounds, one by one."""
    once = ["full"] * 3 + ["predict"] + ["correct"] * 2
    assert ["warmup"] * 2 + once + once == walk(schedule(), 14)


def test_without_a_predictor_full_never_ends() -> None:
    """Nothing can predict: warmup, then full."""
    assert ["warmup"] * 2 + ["full"] * 7 == walk(schedule(predicts=False), 9)


def test_without_warmup_training_begins_full() -> None:
    """Zero warmup steps are allowed."""
    assert ["full", "full", "full", "predict"] == walk(schedule(warmup_steps=0), 4)


def test_short_jumps_wait_for_the_correction_interval() -> None:
    """Two jumps of 5 make the 10 predicted updates that bring a Correct phase."""
    round_trip = ["full"] * 3 + ["predict"]
    expected = ["warmup"] * 2 + round_trip + round_trip + ["correct"] * 2 + ["full"]
    assert expected == walk(schedule(), 13, horizon=5)


def test_correct_forgets_what_was_predicted() -> None:
    """After a Correct phase the count begins at zero."""
    assert 0 == schedule(phase=PREDICT, uncorrected=4).jumped(6).uncorrected


def test_no_correct_steps_means_no_correct_phase() -> None:
    """An accepted jump leads straight back to Full."""
    assert (["full"] * 3 + ["predict"]) * 2 == walk(schedule(correct_steps=0, warmup_steps=0), 8)


def test_a_declined_jump_begins_full_anew() -> None:
    """The next jump is due a whole Full phase later."""
    assert (["full"] * 3 + ["predict"]) * 2 == walk(schedule(warmup_steps=0), 8, horizon=None)


def test_a_declined_jump_counts_for_nothing() -> None:
    """Predicted updates waiting for a correction stay as many."""
    assert 4 == schedule(phase=PREDICT, uncorrected=4).declined().uncorrected


def test_entering_the_current_phase_changes_nothing() -> None:
    """`enter` is idempotent."""
    at = schedule(phase=FULL, done=2, uncorrected=3)
    assert at == at.enter(FULL)


def test_moving_on_leaves_the_old_schedule_alone() -> None:
    """Schedules are values."""
    at = schedule()
    at.enter(FULL).updated().jumped(100)
    assert schedule() == at


def test_phases_are_told_apart_by_what_they_do() -> None:
    """Only Predict changes weights without a backward."""
    assert [
        "warmup",
        "full",
        "correct",
    ] == [phase.name for phase in (WARMUP, FULL, CORRECT) if phase.runs_backward]
    assert (
        False,
        False,
        True,
    ) == (PREDICT.runs_backward, PREDICT.updates_optimizer, PREDICT.applies_prediction)
    assert "predict" == str(PREDICT)


def test_steps_until_by_example() -> None:
    """From the start: 2 warmup and 3 full updates lie before the first Predict step."""
    assert 0 == steps_until(schedule(), lambda phase: phase is WARMUP, 99)
    assert 2 == steps_until(schedule(), lambda phase: phase is FULL, 99)
    assert 5 == steps_until(schedule(), lambda phase: phase is PREDICT, 99)
    assert 5 == steps_until(schedule(), lambda phase: phase is CORRECT, 99)


def test_steps_until_a_phase_that_never_comes_is_none() -> None:
    """Warmup does not come back, and nothing predicts without a predictor."""
    assert steps_until(schedule(phase=FULL), lambda phase: phase is WARMUP, 50) is None
    at = schedule(predicts=False)
    assert steps_until(at, lambda phase: phase is PREDICT, 50) is None


@given(schedules, st.integers(0, 30), st.sampled_from([WARMUP, FULL, PREDICT, CORRECT]))
def test_steps_until_is_what_simulating_finds(at: PhaseSchedule, start: int, wanted: Phase) -> None:
    """Taking that many updates brings the phase, and none before it did."""
    at = advanced(at, start)
    found = steps_until(at, lambda phase: phase is wanted, 60)
    seen: list[set[str]] = []
    for updates in range(61):
        phases = set()
        here = advanced(at, updates)
        phases.add(here.due().name)
        if here.due().applies_prediction:
            landed = here.enter(PREDICT).jumped(here.correction_interval)
            phases.add(landed.due().name)
        seen.append(phases)
    first = next((index for index, phases in enumerate(seen) if wanted.name in phases), None)
    assert first == found


@given(schedules, st.integers(0, 40))
def test_state_goes_round(at: PhaseSchedule, updates: int) -> None:
    """The place in the cycle comes back from its state; the lengths are the config's."""
    moved = advanced(at, updates)
    assert moved == at.restored(moved.state_dict())
