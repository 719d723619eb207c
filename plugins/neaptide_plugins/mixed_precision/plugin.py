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

    from neaptide import ParameterStore, Phase, Run

_TRAINED = ("warmup", "full", "correct")
_AT = {"probe": "predict", "evaluate": "evaluate"}
"""Moments with a setting of their own; any other takes that of its phase."""


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
    """One dtype a phase; the loss scale acts only where that is fp16."""

    _scale: LossScale = attrs.field(init=False, default=attrs.Factory(_initial, takes_self=True))
    # Whether the gradients that wait for an update carry the scale; None where none wait. The
    # first backward decides: a phase may end inside an accumulation over several steps.
    _carried: bool | None = attrs.field(init=False, default=None)
    _store: ParameterStore | None = attrs.field(init=False, default=None)
    _scaled: frozenset[str] = attrs.field(init=False, default=frozenset())

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Refuse fp16 where overflows would go unnoticed or gradients could not be unscaled."""
        self._store = store
        names = [name for name in _TRAINED if self._dtype(name, run) is torch.float16]
        self._scaled = frozenset(names)
        if names:
            _check_scalable(names[0], run, store)

    @hookimpl
    def around_forward(self, run: Run) -> Callable[..., Any]:
        """Run model and loss under autocast, whose cached casts live for this forward alone."""
        dtypes = {name: self._dtype(name, run) for name in (*_TRAINED, *_AT.values())}

        def autocast(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            dtype = dtypes[_AT.get(moment, phase.name)]
            lowered = dtype is not torch.float32
            with torch.autocast(run.device.type, dtype=dtype, enabled=lowered):
                loss = following(phase=phase, moment=moment, **arguments)
            if not lowered:
                return loss
            # An autocast around the whole loop would keep the casts until after the update.
            torch.clear_autocast_cache()
            # Losses are added up and scaled: 65536 is infinity in fp16.
            wide = torch.promote_types(loss.value.dtype, torch.float32)
            return attrs.evolve(loss, value=loss.value.to(wide))

        return autocast

    @hookimpl
    def around_train_step(self) -> Callable[..., Any]:
        """Forget gradients that a failed step has dropped."""

        def step(following: Callable[..., Any], **arguments: Any) -> Any:
            if self._carried is not None and not _any_gradient(self._store):
                self._carried = None
            return following(**arguments)

        return step

    @hookimpl
    def around_backward(self) -> Callable[..., None]:
        """Multiply the loss by the scale, so that small fp16 gradients do not vanish."""

        def backward(following: Callable[..., None], *, loss: torch.Tensor, phase: Phase) -> None:
            if self._carried is None:
                self._carried = phase.name in self._scaled
            following(loss=loss * self._scale.scale if self._carried else loss, phase=phase)

        return backward

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Outcome]:
        """Take the scale out again, and adapt it to what became of the update."""

        def update(
            following: Callable[..., Outcome],
            *,
            gradient_scale: float | torch.Tensor,
            check_norm: bool,
            updated: frozenset[str],
            phase: Phase,
            **arguments: Any,
        ) -> Outcome:
            carried = bool(self._carried)
            if carried:
                _check_waiting(updated)
                gradient_scale = gradient_scale / self._scale.scale
            outcome = following(
                gradient_scale=gradient_scale,
                check_norm=check_norm or carried or phase.name in self._scaled,
                updated=updated,
                phase=phase,
                **arguments,
            )
            if outcome is not Outcome.DEFERRED:
                self._carried = None
                if carried:
                    skipped = outcome is Outcome.SKIPPED
                    self._scale = self._scale.overflowed() if skipped else self._scale.applied()
            return outcome

        return update

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the loss scale, where there is a phase that uses it."""
        return {"loss_scale": self._scale.scale} if self._scaled else {}

    def state_dict(self) -> dict[str, Any]:
        """Return the scale, how long it has held, and whether waiting gradients carry it."""
        return {
            "scale": self._scale.scale,
            "clean": self._scale.clean,
            "carried": self._carried,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._scale = attrs.evolve(self._scale, scale=state["scale"], clean=state["clean"])
        self._carried = state["carried"]

    def _dtype(self, name: str, run: Run) -> torch.dtype:
        return resolve(getattr(self.config, name), run.device)
