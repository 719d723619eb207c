"""Judges the current trial, and derives the pace of jumps from all verdicts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

from .account import OF_A_JUMP, PredictionAccount, worth_of
from .pacing import REGIMES, JumpVerdict, Pacing, regime_of, verdict_of
from .trial import POINTS, JumpTrial, extrapolated, fall_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config import DelayedVerdictConfig

UNFINISHED = "none"


@attrs.define(eq=False)
class Verdicts:
    """At most one trial, and a pace for each regime of the learning rate."""

    config: DelayedVerdictConfig
    factor: Callable[[int], float]
    """The schedule: maps an update to (learning rate / largest learning rate)."""
    trial: JumpTrial | None = None
    pacings: dict[str, Pacing] = attrs.field(factory=lambda: dict.fromkeys(REGIMES, Pacing()))
    points: list[list[float]] = attrs.field(factory=list)
    """Pairs (update, loss of the averaged weights), one for each of the newest verdicts."""
    counts: dict[str, int] = attrs.field(
        factory=lambda: dict.fromkeys((*(each.value for each in JumpVerdict), UNFINISHED), 0)
    )
    newest: dict[str, float] = attrs.field(factory=dict)
    """The newest verdict's gain, standard error, and gain by forecast."""
    judged: dict[str, Any] | None = None
    """The fields of `JumpGain` for the jump that was judged last."""
    account: PredictionAccount = attrs.field(factory=PredictionAccount)

    def pace(self, step: int) -> tuple[float, float]:
        """Return the scale factor and the window factor after `step` updates."""
        pacing = self.pacings[regime_of(self.factor(step))]
        return 0.0 if self.refusal(step) else pacing.scale, pacing.window

    def refusal(self, step: int) -> str:
        """Return why no jump is made after `step` updates; empty if a jump can be made."""
        if step < self.pacings[regime_of(self.factor(step))].until:
            return "a pause after harmful jumps"
        account, share = self.account, self.config.budget
        if share == 1.0 or account.affords(OF_A_JUMP, step, share):
            return ""
        return (
            f"predicting has cost {account.cost:g} updates, its jumps were worth "
            f"{account.worth:.3g}, and the budget is {share:g} of {step} updates"
        )

    def judges(self, step: int) -> bool:
        """Return whether a jump after `step` updates is judged: if no other is, in the budget.

        A verdict may use half of the budget, so that it leaves room for the jumps after it.
        """
        share = self.config.budget
        each = 3 if self.config.contrast == "mirrored" else 2
        forwards = OF_A_JUMP + each * self.config.batches
        affordable = share == 1.0 or self.account.affords(forwards, step, share / 2)
        return self.trial is None and affordable

    def begin(self, step: int, horizon: int) -> None:
        """Begin the trial of a jump that was accepted after `step` updates."""
        expected = extrapolated(self.points, step + self.config.after)
        self.trial = JumpTrial(step + 1, horizon, regime_of(self.factor(step)), expected)

    @property
    def sample(self) -> int:
        """Number (from 1) of the sample that the next update adds to the mean; 0 for no sample."""
        first = self.config.after - self.config.average
        if self.trial is None or not first <= self.trial.seen < self.config.after:
            return 0
        return self.trial.seen - first + 1

    @property
    def due(self) -> bool:
        """True if the jump is to be judged on the next batch."""
        return self.trial is not None and self.trial.seen >= self.config.after

    def updated(self) -> None:
        """Count an update if a jump is on trial."""
        if self.trial is not None:
            self.trial.seen += 1

    def take(self, losses: list[float], step: int) -> tuple[str, dict[str, Any]] | None:
        """Add the losses of one batch to the trial, after `step` updates.

        After the last batch, or if a loss is not finite, return the verdict and its details.
        Otherwise return None.
        """
        trial = self.trial
        assert trial is not None, "it is due"
        trial.losses.append(losses)
        finite = all(map(math.isfinite, losses))
        if finite and len(trial.losses) < self.config.batches:
            return None
        self.trial = None
        about: dict[str, Any] = {"step": step + 1, "jump": trial.step, "horizon": trial.horizon}
        if not finite:
            self.counts[UNFINISHED] += 1
            return UNFINISHED, {**about, "losses": losses}
        verdict = verdict_of(trial.gain, trial.error, self.config.certainty)
        pacing = self.pacings[trial.regime].after(verdict, step, self.config)
        self.pacings[trial.regime] = pacing
        self.points = [*self.points, [step, trial.loss]][-POINTS:]
        self.counts[verdict.value] += 1
        fall = fall_at(self.points, step)
        self.account.worth += worth_of(verdict, trial.gain, fall, trial.horizon)
        self.newest = {"gain": trial.gain, "stderr": trial.error}
        self.judged = {"jump": trial.step, "horizon": trial.horizon, **self.newest}
        if trial.expected is not None:
            self.newest["gain_by_forecast"] = trial.expected - trial.loss
        scale, window = pacing.scale_at(step), pacing.window
        pace = {"scale": scale, "window": window, **self._books()}
        return verdict.value, {**about, **self.newest, "regime": trial.regime, **pace}

    def metrics(self, step: int) -> dict[str, float]:
        """Return the pace, the counts of verdicts, and the fields of `newest`."""
        scale, window = self.pace(step)
        counts = {name: float(count) for name, count in self.counts.items()}
        return {"scale": scale, "window": window, **counts, **self._books(), **self.newest}

    def _books(self) -> dict[str, float]:
        return {"cost": self.account.cost, "worth": self.account.worth}

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the configuration."""
        return {
            "trial": None if self.trial is None else attrs.asdict(self.trial),
            "pacings": {name: attrs.asdict(pacing) for name, pacing in self.pacings.items()},
            "points": [list(point) for point in self.points],
            "counts": dict(self.counts),
            "newest": dict(self.newest),
            "judged": self.judged,
            "account": attrs.asdict(self.account),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.trial = None if state["trial"] is None else JumpTrial(**state["trial"])
        self.pacings = {name: Pacing(**saved) for name, saved in state["pacings"].items()}
        self.points = [list(point) for point in state["points"]]
        self.judged, self.account = state["judged"], PredictionAccount(**state["account"])
        self.counts, self.newest = dict(state["counts"]), dict(state["newest"])
