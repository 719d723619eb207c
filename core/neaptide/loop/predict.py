"""One Predict step: asks for a forecast and an update, and has the guard judge it."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api.phases import CORRECT, WARMUP
from neaptide.api.steps import Jump
from neaptide.errors import PluginError
from neaptide.hooks.enabling import DYNAMICS, PREDICTOR
from neaptide.hooks.middleware import blame

from .guard import Guard, as_it_was, unwritten

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from neaptide.api.history import History
    from neaptide.api.parameters import ParameterStore
    from neaptide.api.phases import PhaseSchedule
    from neaptide.api.steps import Update
    from neaptide.config.schema import PredictSection
    from neaptide.hooks.manager import HookManager

    from .guard import Verdict
    from .state import TrainState

DEFAULT_CONFIDENCE = 0.85
"""Least confidence to predict at where a dynamics model runs and the config names none."""


def attempt(
    hooks: HookManager,
    propose: Callable[..., Update | None],
    model: nn.Module,
    store: ParameterStore,
    history: History,
    probe: Callable[[], float],
    *,
    horizon: int,
    settings: PredictSection,
) -> Jump | None:
    """Return the judged jump, or None where nothing was proposed.

    `propose(store=, history=, horizon=)` is the hook `propose_update` and what is around it.
    `probe()` is the loss of the weights as they are, by a forward that leaves no trace. Whatever a
    predictor draws at random or does to `model`, generators, modes and buffers come back, and
    weights that it writes to itself are an error: PluginError.
    """
    started = time.perf_counter()
    with as_it_was(model):
        with unwritten(store, model):
            confidence = _confidence(hooks, history, horizon)
            least = settings.confidence or DEFAULT_CONFIDENCE
            if confidence is not None and not confidence >= least:  # nor is NaN
                return None
            update = propose(store=store, history=history, horizon=horizon)
        if update is None:
            return None
        guard = Guard(rise=settings.rise, halvings=settings.halvings)
        verdict = _judged(guard, store, update, probe, _predictor(hooks))
    return Jump(
        accepted=verdict.accepted,
        horizon=max(1, round(min(update.horizon, horizon) * (verdict.scale or 1.0))),
        scale=verdict.scale,
        loss_before=verdict.loss_before,
        loss_after=verdict.loss_after,
        norm=verdict.norm,
        confidence=confidence,
        reason=verdict.reason,
        seconds=time.perf_counter() - started,
    )


def _predictor(hooks: HookManager) -> str | None:
    return next((name for name, spec in hooks.specs.items() if PREDICTOR in spec.claims), None)


def _judged(
    guard: Guard,
    store: ParameterStore,
    update: Update,
    probe: Callable[[], float],
    predictor: str | None,
) -> Verdict:
    """Have the guard judge; what the update's own functions raise is blamed on the predictor."""

    def owned(function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any) -> Any:
            try:
                return function(*arguments)
            except BaseException as error:
                blame(error, predictor, "propose_update")
                raise

        return called

    add = None if update.add is None else owned(update.add)
    try:
        return guard.judge(store, attrs.evolve(update, delta=owned(update.delta), add=add), probe)
    except PluginError as error:  # a delta that is none
        blame(error, predictor, "propose_update")
        raise


def _confidence(hooks: HookManager, history: History, horizon: int) -> float | None:
    """Return how sure a dynamics model is; None without one, or where it has nothing to say."""
    if not any(DYNAMICS in spec.claims for spec in hooks.specs.values()):
        return None
    forecast = hooks.forecast(history, horizon)
    if forecast is None:
        return None
    return forecast.confidence if math.isfinite(forecast.loss) else math.nan


def note_jump(state: TrainState, before: PhaseSchedule, jump: Jump | None, log: Any) -> None:
    """Count a jump, log it, and leave the schedule, which was `before`, at what follows it."""
    if jump is None or not jump.accepted:
        # Forced within Warmup or Correct, a jump that was none cuts neither of them short.
        cut = before.phase in {WARMUP, CORRECT} and before.due() is before.phase
        state.schedule = before if cut else state.schedule.declined()
    else:
        state.predicted += jump.horizon
        state.jumps += 1
        state.schedule = state.schedule.jumped(jump.horizon)
    _log_jump(log, state.step + 1, jump)  # the update it comes before


def _log_jump(log: Any, step: int, jump: Jump | None) -> None:
    """Write the event of a Predict step: declined, refused or accepted."""
    if jump is None:
        log.info("jump.declined", step=step)
        return
    log.info(
        "jump.accepted" if jump.accepted else "jump.refused",
        step=step,
        horizon=jump.horizon,
        scale=jump.scale,
        norm=jump.norm,
        loss_before=jump.loss_before,
        loss_after=jump.loss_after,
        confidence=jump.confidence,
        reason=jump.reason,
        seconds=round(jump.seconds, 6),
    )
