"""Wraps forwards in autocast, backwards in the loss scale, and updates in its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import ConfigError, Outcome, Plugin, hookimpl

from .config import MixedPrecisionConfig
from .precision import resolve
from .scaling import LossScale

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Phase, Run

_TRAINED = ("warmup", "full", "correct")


def _initial(plugin: MixedPrecision) -> LossScale:
    config = plugin.config
    return LossScale(
        scale=config.initial_scale,
        growth_factor=config.growth_factor,
        backoff_factor=config.backoff_factor,
        growth_interval=config.growth_interval,
    )


@attrs.define(eq=False)
class MixedPrecision(Plugin[MixedPrecisionConfig]):
    """One dtype a phase; the loss scale lives only where that is fp16."""

    _scale: LossScale = attrs.field(init=False, default=attrs.Factory(_initial, takes_self=True))

    def _dtype(self, where: str, run: Run) -> torch.dtype:
        return resolve(getattr(self.config, where), run.device)

    def _scaled(self, run: Run) -> frozenset[str]:
        return frozenset(name for name in _TRAINED if self._dtype(name, run) is torch.float16)

    @hookimpl
    def on_run_start(self, run: Run) -> None:
        """Refuse fp16 without the check that finds overflows."""
        if self._scaled(run) and not run.config.train.check_finite:
            msg = (
                "fp16 needs train.check_finite = true to notice overflows; set it or use bf16 "
                "@ plugins.mixed-precision"
            )
            raise ConfigError(msg)

    @hookimpl
    def around_forward(self, run: Run) -> Callable[..., Any]:
        """Run model and loss under autocast."""
        names = (*_TRAINED, "predict", "evaluate")
        dtypes = {name: self._dtype(name, run) for name in names}

        def autocast(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            dtype = dtypes["evaluate" if moment == "evaluate" else phase.name]
            if dtype is torch.float32:
                return following(phase=phase, moment=moment, **arguments)
            with torch.autocast(run.device.type, dtype=dtype):
                return following(phase=phase, moment=moment, **arguments)

        return autocast

    @hookimpl
    def around_backward(self, run: Run) -> Callable[..., None] | None:
        """Multiply the loss by the scale, so that small fp16 gradients do not vanish."""
        scaled = self._scaled(run)

        def backward(following: Callable[..., None], *, loss: torch.Tensor, phase: Phase) -> None:
            if phase.name in scaled:
                loss = loss * self._scale.scale
            following(loss=loss, phase=phase)

        return backward if scaled else None

    @hookimpl
    def around_optimizer_step(self, run: Run) -> Callable[..., Outcome] | None:
        """Take the scale out again, and adapt it to what became of the update."""
        scaled = self._scaled(run)

        def update(
            following: Callable[..., Outcome],
            *,
            gradient_scale: float | torch.Tensor,
            check_norm: bool,
            phase: Phase,
            **arguments: Any,
        ) -> Outcome:
            if phase.name in scaled:
                gradient_scale, check_norm = gradient_scale / self._scale.scale, True
            outcome = following(
                gradient_scale=gradient_scale, check_norm=check_norm, phase=phase, **arguments
            )
            if phase.name in scaled and outcome is Outcome.SKIPPED:
                self._scale = self._scale.overflowed()
            elif phase.name in scaled and outcome is Outcome.APPLIED:
                self._scale = self._scale.applied()
            return outcome

        return update if scaled else None

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the loss scale."""
        return {"loss_scale": self._scale.scale}

    def state_dict(self) -> dict[str, Any]:
        """Return the scale and how long it has held."""
        return {"scale": self._scale.scale, "clean": self._scale.clean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._scale = attrs.evolve(self._scale, scale=state["scale"], clean=state["clean"])
