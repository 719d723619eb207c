"""Wraps forwards in autocast, backwards in the loss scale, and updates in its removal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Outcome, Plugin, hookimpl

from . import diagnosis
from .config import MixedPrecisionConfig
from .precision import computing_in, resolve, widened
from .refusals import check_scalable
from .scaling import LossScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neaptide import Finding, ParameterStore, Phase, Run

_TRAINED = ("warmup", "full", "correct")
_SETTINGS = (*_TRAINED, "predict", "evaluate")
_AT = {"probe": "predict", "evaluate": "evaluate"}
"""Moments with a setting of their own; any other takes its phase's."""


@attrs.define(eq=False)
class MixedPrecision(Plugin[MixedPrecisionConfig]):
    """One dtype a phase; the loss scale acts only where that is fp16."""

    _scaler: LossScaler = attrs.field(init=False)
    _dtypes: dict[str, torch.dtype] = attrs.field(init=False)
    _fp16: tuple[str, ...] = attrs.field(init=False, default=())
    _store: ParameterStore = attrs.field(init=False)

    @_scaler.default
    def _initial(self) -> LossScaler:
        return LossScaler(self.config.loss_scale())

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Resolve the settings for the device; refuse fp16 where it cannot work."""
        self._store = store
        self._dtypes = {name: resolve(getattr(self.config, name), run.device) for name in _SETTINGS}
        self._fp16 = tuple(name for name in _TRAINED if self._dtypes[name] is torch.float16)
        if self._fp16:
            check_scalable(self._fp16[0], run, store)

    @hookimpl
    def around_forward(self, run: Run) -> Callable[..., Any]:
        """Run model and loss in the dtype of phase and moment."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            dtype = self._dtypes[_AT.get(moment, phase.name)]
            with computing_in(dtype, run.device):
                loss = following(phase=phase, moment=moment, **arguments)
            if dtype is torch.float32:
                return loss
            return attrs.evolve(loss, value=widened(loss.value))

        return forward

    @hookimpl
    def around_train_step(self) -> Callable[..., Any]:
        """Begin anew where a step that failed has dropped the gradients that waited."""

        def step(following: Callable[..., Any], **arguments: Any) -> Any:
            store, scaler = self._store, self._scaler
            if scaler.carried is not None and not any(map(store.has_gradient, store.spans())):
                scaler.carried = None
            return following(**arguments)

        return step

    @hookimpl
    def around_backward(self) -> Callable[..., None]:
        """Multiply the loss by the scale, so that small fp16 gradients do not vanish."""

        def backward(following: Callable[..., None], *, loss: torch.Tensor, phase: Phase) -> None:
            factor = self._scaler.before_backward(wanted=phase.name in self._fp16)
            following(loss=loss if factor == 1.0 else loss * factor, phase=phase)

        return backward

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Outcome]:
        """Take the scale out again, and adapt it to what became of the update."""

        def update(
            following: Callable[..., Outcome],
            *,
            gradient_scale: float | torch.Tensor,
            check_norm: bool,
            phase: Phase,
            **arguments: Any,
        ) -> Outcome:
            scaler = self._scaler
            outcome = following(
                gradient_scale=gradient_scale / scaler.factor,
                check_norm=check_norm or bool(scaler.carried) or phase.name in self._fp16,
                phase=phase,
                **arguments,
            )
            if outcome is not Outcome.DEFERRED:
                scaler.updated(applied=outcome is Outcome.APPLIED)
            return outcome

        return update

    @hookimpl
    def collect_metrics(self) -> dict[str, float]:
        """Return the loss scale, where a phase uses it."""
        return {"loss_scale": self._scaler.current.scale} if self._fp16 else {}

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Say which dtypes the devices here compute in."""
        return diagnosis.findings(diagnosis.capabilities())

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._scaler.load_state_dict(state)
