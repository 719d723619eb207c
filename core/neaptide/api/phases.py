"""The four phases, and the schedule that chooses the next phase. Imports no torch."""

from __future__ import annotations

from typing import Literal, cast

import attrs


@attrs.frozen
class Phase:
    """A phase has a name and lists the parts of a step that run in this phase."""

    name: str
    runs_backward: bool
    updates_optimizer: bool
    applies_prediction: bool

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Phase({self.name!r})"


WARMUP = Phase("warmup", runs_backward=True, updates_optimizer=True, applies_prediction=False)
FULL = Phase("full", runs_backward=True, updates_optimizer=True, applies_prediction=False)
PREDICT = Phase("predict", runs_backward=False, updates_optimizer=False, applies_prediction=True)
CORRECT = Phase("correct", runs_backward=True, updates_optimizer=True, applies_prediction=False)

PHASES = {phase.name: phase for phase in (WARMUP, FULL, PREDICT, CORRECT)}

TrainedPhase = Literal["warmup", "full", "correct"]
"""The name of a phase that runs a backward; a type for settings."""
TRAINED = tuple(cast("TrainedPhase", name) for name, phase in PHASES.items() if phase.runs_backward)
"""Names of the phases that run a backward, in the order of the cycle."""


@attrs.frozen(kw_only=True)
class PhaseSchedule:
    """The position in the sequence Warmup, then Full -> Predict -> Correct -> Full …; immutable.

    The length of a phase is a number of ordinary updates. A Predict phase tries one jump (predicted
    update). Methods return a new schedule, so a plugin may simulate later steps.
    """

    warmup_steps: int
    full_steps: int
    correct_steps: int
    correction_interval: int
    """Number of updates that jumps must replace before a Correct phase is due."""
    predicts: bool
    """True if a plugin can predict. If this is False, the Full phase never ends."""
    phase: Phase = WARMUP
    done: int = 0
    """Ordinary updates made in `phase` so far."""
    uncorrected: int = 0
    """Number of updates that jumps have replaced since the last Correct phase."""

    def __repr__(self) -> str:
        steps = f"{self.warmup_steps} warmup, {self.full_steps} full, {self.correct_steps} correct"
        return f"PhaseSchedule({steps}; {self.done} done in {self.phase})"

    def due(self) -> Phase:
        """Return the phase of the next step."""
        if self.phase is WARMUP and self.done < self.warmup_steps:
            return WARMUP
        if self.phase is CORRECT and self.done < self.correct_steps:
            return CORRECT
        if self.phase is FULL and self.done >= self.full_steps and self.predicts:
            return PREDICT
        return FULL

    def enter(self, phase: Phase) -> PhaseSchedule:
        """Return the schedule at the start of `phase`; unchanged if it is the current phase."""
        if phase is self.phase:
            return self
        return self._at(phase, 0, 0 if phase is CORRECT else self.uncorrected)

    def updated(self) -> PhaseSchedule:
        """Return the schedule after one ordinary update."""
        return self._at(self.phase, self.done + 1, self.uncorrected)

    def jumped(self, horizon: int) -> PhaseSchedule:
        """Return the schedule after an accepted jump that replaces `horizon` updates."""
        uncorrected = self.uncorrected + horizon
        due = self.correct_steps > 0 and uncorrected >= self.correction_interval
        moved = self._at(self.phase, self.done, uncorrected)
        return moved.enter(CORRECT if due else FULL)

    def declined(self) -> PhaseSchedule:
        """Return the schedule after a Predict step that changed no weight."""
        return self.enter(FULL)

    def state_dict(self) -> dict[str, int | str]:
        """Return the position in the cycle. The config has the lengths of the phases."""
        return {"phase": self.phase.name, "done": self.done, "uncorrected": self.uncorrected}

    def restored(self, state: dict[str, int | str]) -> PhaseSchedule:
        """Return this schedule at the position in `state`, a value of `state_dict`."""
        phase = PHASES[str(state["phase"])]
        return self._at(phase, int(state["done"]), int(state["uncorrected"]))

    def _at(self, phase: Phase, done: int, uncorrected: int) -> PhaseSchedule:
        return PhaseSchedule(  # attrs.evolve is too slow for each step
            warmup_steps=self.warmup_steps,
            full_steps=self.full_steps,
            correct_steps=self.correct_steps,
            correction_interval=self.correction_interval,
            predicts=self.predicts,
            phase=phase,
            done=done,
            uncorrected=uncorrected,
        )
