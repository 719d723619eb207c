"""The plugin: chooses the length of each Full phase and jump, and learns from judged jumps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import FULL, PREDICT, ROLLBACK, Outcome, Plugin, hookimpl
from neaptide_toolkit.predictors.jump_gain import JUMP_GAIN, JumpGain
from neaptide_toolkit.predictors.learning_rate import rate_factor
from neaptide_toolkit.predictors.run_features import run_features
from neaptide_toolkit.saved_form import counter

from .config import AdaptivePhasesConfig
from .cycles import SIZE, PhaseCycle, as_tensor, context_of, fall_of, loaded
from .linucb import LinUcb

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import AroundPredict, Ledger, Phase, PhaseSchedule, Run, StepResult
    from neaptide.api.history import History

_WAITING = 16
"""Largest number of jumps without a verdict that are remembered."""
_DOUBLINGS = 16
"""More doublings of a length are not counted."""
_MISSING = JumpGain(0, 0, 0.0, 0.0)


@attrs.define(eq=False)
class AdaptivePhases(Plugin[AdaptivePhasesConfig]):
    """Two bandits, one for the Full phase and one for the horizon, with the same reward."""

    _run: Run = attrs.field(init=False)
    _full: LinUcb = attrs.field(init=False)
    _horizon: LinUcb = attrs.field(init=False)
    _horizons: tuple[int, ...] = attrs.field(init=False)
    _history: History | None = attrs.field(init=False, default=None)
    _factor: Callable[[int], float] = attrs.field(init=False)
    _chosen: int | None = attrs.field(init=False, default=None)
    """The chosen length of a Full phase, as an index; it holds until a jump is tried."""
    _context: list[float] = attrs.field(init=False, factory=list)
    _reach: int | None = attrs.field(init=False, default=None)
    """The chosen horizon, as an index; it holds until a jump is tried."""
    _far: list[float] = attrs.field(init=False, factory=list)
    """The context of the chosen horizon."""
    _declined: int = attrs.field(init=False, default=0)
    """Predict steps in a row in which no jump was tried."""
    _waiting: dict[int, PhaseCycle] = attrs.field(init=False, factory=dict)
    """Accepted jumps whose verdict may come, by number."""
    _step: int = attrs.field(init=False, default=0)
    _since: int = attrs.field(init=False, default=0)
    """Applied updates since the last jump."""
    _learned: int = attrs.field(init=False, default=0)
    _newest: dict[str, float] = attrs.field(init=False, factory=dict)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Make the bandits, and listen for verdicts."""
        config, longest = self.config, run.config.phases.predict.max_horizon
        self._run, self._factor = run, rate_factor(run.stash)
        self._horizons = tuple(sorted({min(each, longest) for each in config.lengths}))
        self._full, self._horizon = (
            LinUcb(len(arms), SIZE, config.exploration, config.ridge)
            for arms in (config.lengths, self._horizons)
        )
        run.stash.on_set(JUMP_GAIN, self._judged)
        run.stash.on_set(ROLLBACK, self._forget)

    @property
    def _learns(self) -> bool:
        """True if a plugin judges jumps."""
        return self._run.stash.get(JUMP_GAIN, _MISSING) is not _MISSING

    @hookimpl
    def on_phase_enter(self, previous: Phase | None) -> None:
        """At the start, say so in one line if no plugin judges jumps."""
        if previous is None and not self._learns:
            reason = "no plugin judges jumps (enable delayed-verdict): lengths stay as configured"
            self._run.log.warning("adaptive-phases.idle", reason=reason)

    @hookimpl
    def select_phase(self, history: History, schedule: PhaseSchedule) -> Phase | None:
        """Choose a length for the Full phase before a jump, and end the phase at that length.

        After a Predict step in which no jump was tried, the next Full phase is twice as long, up to
        the longest length: the predictor's window is not full, and asking it has a price.
        """
        self._history = history
        if schedule.phase is not FULL or schedule.done == 0:
            return None
        if not schedule.predicts or not self._learns:
            return None
        if self._chosen is None:
            self._context = self._features()
            self._chosen = self._full.choose(as_tensor(self._context))
            self._newest["full"] = float(self.config.lengths[self._chosen])
        lengths = self.config.lengths
        length = min(lengths[-1], lengths[self._chosen] << self._declined)
        return PREDICT if schedule.done >= length else FULL

    def _features(self) -> list[float]:
        losses = () if self._history is None else self._history.losses
        progress = self._step / self._run.config.train.steps
        return context_of(run_features(losses, progress=progress, rate=self._factor(self._step)))

    @hookimpl
    def after_step(self, step: int, result: StepResult) -> None:
        """Count applied updates."""
        self._step = step
        self._since += result.outcome is Outcome.APPLIED

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Limit the horizon to a chosen length. Learn at once from a refused jump."""

        def limited(following: Callable[..., Any], *, horizon: int, **arguments: Any) -> Any:
            if not self._learns:
                return following(horizon=horizon, **arguments)
            if self._reach is None:
                self._far = self._features()
                self._reach = self._horizon.choose(as_tensor(self._far))
                self._newest["horizon"] = float(self._horizons[self._reach])
            full, arm, context = self._chosen, self._reach, self._far
            jump = following(horizon=min(horizon, self._horizons[arm]), **arguments)
            if jump is None:
                self._declined = min(self._declined + 1, _DOUBLINGS)
            else:
                self._chosen, self._reach, self._declined = None, None, 0
                settings = self._run.config.phases.predict
                tries = 1 + (settings.halvings if not jump.accepted else _halvings(jump.scale))
                losses = () if self._history is None else self._history.losses
                cycle = PhaseCycle(
                    self._step + 1,
                    full,
                    self._context if full is not None else [],
                    arm,
                    context,
                    self._since,
                    1 + tries,
                    fall_of(losses),
                )
                self._since = 0
                if jump.accepted:
                    self._waiting[cycle.jump] = cycle
                    for number in sorted(self._waiting)[:-_WAITING]:
                        del self._waiting[number]
                else:
                    self._learn(cycle, 0.0, jump.horizon)
            return jump

        return limited

    def _judged(self) -> None:
        """Learn from a new verdict; forget the earlier jumps, which were not judged."""
        found = self._run.stash.get(JUMP_GAIN)
        cycle = None if found is None else self._waiting.get(found.jump)
        if found is None or cycle is None:
            return
        self._waiting = {
            number: one for number, one in self._waiting.items() if number > found.jump
        }
        self._learn(cycle, found.gain, found.horizon)

    def _learn(self, cycle: PhaseCycle, gain: float, horizon: int) -> None:
        reward = cycle.reward(gain, horizon)
        if cycle.full is not None:
            self._full.learn(cycle.full, as_tensor(cycle.full_context), reward)
        self._horizon.learn(cycle.horizon, as_tensor(cycle.horizon_context), reward)
        self._learned += 1
        self._newest["reward"] = reward
        self._run.log.info(
            "adaptive-phases.learned",
            step=self._step + 1,
            jump=cycle.jump,
            full=None if cycle.full is None else self.config.lengths[cycle.full],
            horizon=self._horizons[cycle.horizon],
            reward=reward,
        )

    def _forget(self) -> None:
        """Forget the jumps that wait: a rollback has undone them, and no verdict will come."""
        self._waiting, self._since = {}, 0
        self._chosen, self._reach, self._declined = None, None, 0

    @hookimpl
    def estimate_memory(self, ledger: Ledger) -> Ledger:
        """Add the tensors of both bandits."""
        return ledger.add(
            "adaptive-phases", "scheduler", "host", self._full.bytes + self._horizon.bytes
        )

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the newest lengths and reward, and the number of rewards so far."""
        return {**self._newest, "learned": float(self._learned)}

    def state_dict(self) -> dict[str, Any]:
        """Return both bandits, the present choice, and the jumps that wait for a verdict."""
        return {
            "full": self._full.state_dict(),
            "horizon": self._horizon.state_dict(),
            "chosen": self._chosen,
            "context": list(self._context),
            "reach": self._reach,
            "far": list(self._far),
            "declined": self._declined,
            "waiting": [attrs.asdict(cycle) for cycle in self._waiting.values()],
            "step": self._step,
            "since": self._since,
            "learned": self._learned,
            "newest": dict(self._newest),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._step, self._since = counter(state, "step"), counter(state, "since")
        self._learned = counter(state, "learned")
        self._full.load_state_dict(state["full"])
        self._horizon.load_state_dict(state["horizon"])
        self._chosen, self._context = state["chosen"], list(state["context"])
        self._reach, self._far = state["reach"], list(state["far"])
        self._declined = counter(state, "declined")
        self._waiting = {one["jump"]: loaded(one) for one in state["waiting"]}
        self._newest = dict(state["newest"])


def _halvings(scale: float) -> int:
    """Return how often the guard halved a jump that it accepted at this scale."""
    return round(1.0 / scale).bit_length() - 1
