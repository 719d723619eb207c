"""One Predict step: asks for a forecast and an update, and has the guard judge it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from . import rng
from .enabling import DYNAMICS
from .predict import Guard
from .steps import Jump

if TYPE_CHECKING:
    from collections.abc import Callable

    from .config.schema import PredictSection
    from .history import History
    from .manager import HookManager
    from .parameters import ParameterStore

DEFAULT_CONFIDENCE = 0.85
"""Least confidence to predict at where a dynamics model runs and the config names none."""


def attempt(
    hooks: HookManager,
    store: ParameterStore,
    history: History,
    probe: Callable[[], float],
    *,
    horizon: int,
    settings: PredictSection,
) -> Jump | None:
    """Return the judged jump, or None where nothing was proposed.

    `probe()` is the loss of the weights as they are, by a forward that leaves no trace. What a
    predictor draws at random does not move the run's generators.
    """
    with rng.preserved():
        return _attempted(hooks, store, history, probe, horizon, settings)


def _attempted(
    hooks: HookManager,
    store: ParameterStore,
    history: History,
    probe: Callable[[], float],
    horizon: int,
    settings: PredictSection,
) -> Jump | None:
    started = time.perf_counter()
    confidence = None
    if any(DYNAMICS in spec.claims for spec in hooks.specs.values()):
        forecast = hooks.forecast(history, horizon)
        confidence = forecast.confidence if forecast else None
        if confidence is not None and confidence < (settings.confidence or DEFAULT_CONFIDENCE):
            return None
    update = hooks.propose_update(store, history, horizon)
    if update is None:
        return None
    verdict = Guard(rise=settings.rise, halvings=settings.halvings).judge(store, update, probe)
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


def log_jump(log: Any, step: int, jump: Jump | None) -> None:
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
