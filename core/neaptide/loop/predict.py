"""One Predict step: requests a forecast and an update from plugins, and calls the guard."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api.phases import CORRECT, WARMUP
from neaptide.api.steps import DECLINED, Forecast, Jump
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
    from neaptide.api.stash import Stash
    from neaptide.api.steps import Update
    from neaptide.api.task import Run
    from neaptide.config.schema import PredictSection
    from neaptide.hooks.manager import HookManager

    from .guard import Verdict
    from .state import TrainState

DEFAULT_CONFIDENCE = 0.85
"""The smallest confidence that allows a jump, if `phases.predict.confidence` is not set."""


def attempt(
    hooks: HookManager,
    propose: Callable[..., Update | None],
    model: nn.Module,
    store: ParameterStore,
    history: History,
    probe: Callable[[], float],
    stash: Stash,
    *,
    horizon: int,
    settings: PredictSection,
) -> Jump | None:
    """Return the jump with the guard's verdict, or None if no update was proposed.

    `propose(store=, history=, horizon=)` calls the hook `propose_update` inside its middleware.
    `probe()` returns the loss of the present weights and changes no state. At the end `attempt`
    restores random generators, train modes and buffers. PluginError if a hook writes weights.
    """
    started = time.perf_counter()
    with as_it_was(model):
        with unwritten(store, model):
            confidence = _confidence(hooks, history, horizon)
            least = settings.confidence or DEFAULT_CONFIDENCE
            if confidence is not None and not confidence >= least:  # true for NaN, too
                found = f"confidence {confidence:.3g} is below {least:g}"
                found = "loss is not finite" if math.isnan(confidence) else found
                stash.set(DECLINED, f"the forecast's {found}")
                return None
            update = propose(store=store, history=history, horizon=horizon)
        if update is None:
            return None
        guard = Guard(rise=settings.rise, halvings=settings.halvings)
        predictor = next((n for n, spec in hooks.specs.items() if PREDICTOR in spec.claims), None)
        verdict = _judged(guard, store, update, probe, predictor)
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


def _judged(
    guard: Guard,
    store: ParameterStore,
    update: Update,
    probe: Callable[[], float],
    predictor: str | None,
) -> Verdict:
    """Return the guard's verdict. Errors from the functions of `update` name the predictor."""

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
    except PluginError as error:  # an unusable delta
        blame(error, predictor, "propose_update")
        raise


def _confidence(hooks: HookManager, history: History, horizon: int) -> float | None:
    """Return the forecast's confidence; None without a forecast, NaN for a non-finite forecast."""
    if not any(DYNAMICS in spec.claims for spec in hooks.specs.values()):
        return None
    forecast: Forecast | None = hooks.first("forecast", Forecast, history=history, horizon=horizon)
    if forecast is None:
        return None
    return forecast.confidence if math.isfinite(forecast.loss) else math.nan


def note_jump(state: TrainState, before: PhaseSchedule, jump: Jump | None, run: Run) -> None:
    """Count and log a Predict step; update the schedule. `before` is the old schedule."""
    if jump is None or not jump.accepted:
        # If a forced Predict step in Warmup or Correct fails, it must not end that phase.
        cut = before.phase in {WARMUP, CORRECT} and before.due() is before.phase
        state.schedule = before if cut else state.schedule.declined()
    else:
        state.predicted += jump.horizon
        state.jumps += 1
        state.schedule = state.schedule.jumped(jump.horizon)
    step = state.step + 1  # the number of the update after the jump
    if jump is None:
        reason = run.stash.get(DECLINED) or "the predictor proposed no update"
        run.log.info("jump.declined", step=step, reason=reason)
        return
    facts = attrs.asdict(jump, filter=attrs.filters.exclude("accepted"))
    facts["seconds"] = round(jump.seconds, 6)
    run.log.info("jump.accepted" if jump.accepted else "jump.refused", step=step, **facts)
