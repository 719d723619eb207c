"""Runs forwards under autocast, scales losses before backwards, and unscales at updates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide import Outcome, Plugin, hookimpl
from neaptide.api.phases import TRAINED
from neaptide.api.steps import NOTES
from neaptide.api.timeline import NOTHING
from neaptide_toolkit.gradient_error import is_measured
from neaptide_toolkit.low_precision import Chosen, choose_weights, intercepting

from . import diagnosis
from .config import MixedPrecisionConfig
from .fp8 import Fp8Products
from .precision import DTYPES, computing_in, resolve, widened
from .refusals import check_fp8, check_scalable
from .scaling import LossScaler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide import (
        AroundBackward,
        AroundForward,
        AroundOptimizerStep,
        AroundTrainStep,
        Finding,
        ParameterStore,
        Phase,
        Run,
    )

_SETTINGS = (*TRAINED, "predict", "evaluate")
_AT = {"probe": "predict", "evaluate": "evaluate"}
"""Moments of a step that have their own setting. Any other moment uses its phase's setting."""


@attrs.define(eq=False)
class MixedPrecision(Plugin[MixedPrecisionConfig]):
    """Runs each phase in its own dtype; scales the loss only in phases with fp16."""

    _scaler: LossScaler = attrs.field(init=False)
    _dtypes: dict[str, torch.dtype] = attrs.field(init=False)
    _fp16: tuple[str, ...] = attrs.field(init=False, default=())
    _store: ParameterStore = attrs.field(init=False)
    _fp8: tuple[str, ...] = attrs.field(init=False)
    _chosen: Chosen = attrs.field(init=False)
    _products: Fp8Products = attrs.field(init=False)

    @_fp8.default
    def _in_fp8(self) -> tuple[str, ...]:
        return tuple(name for name in _SETTINGS if self.config.precision(name) == "fp8")

    @_scaler.default
    def _initial(self) -> LossScaler:
        return LossScaler(self.config.loss_scale())

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights whose products use fp8, before another plugin moves a weight."""
        config = self.config
        self._chosen = choose_weights(
            model,
            include=("*",),
            exclude=config.fp8_exclude,
            min_elements=config.fp8_min_elements,
        )

    @hookimpl
    def on_run_start(self, run: Run, store: ParameterStore) -> None:
        """Resolve the settings for the device. Raise an error if fp16 or fp8 cannot work."""
        self._store = store
        config = self.config
        self._dtypes = {name: resolve(config.precision(name), run.device) for name in _SETTINGS}
        self._fp16 = tuple(name for name in TRAINED if self._dtypes[name] is torch.float16)
        if self._fp16:
            check_scalable(config.setting(self._fp16[0]), run, store)
        names = {dtype: name for name, dtype in DTYPES.items()}
        said = {name: names[dtype] for name, dtype in self._dtypes.items()}
        said |= dict.fromkeys(self._fp8, "fp8")
        run.log.info("mixed-precision.dtypes", **said)
        run.stash.set(NOTES, (*(run.stash.get(NOTES) or ()), _line(said)))
        self._products = Fp8Products(self._chosen.names, torch.bfloat16)
        if self._fp8:
            check_fp8(config.setting(self._fp8[0]), config, run.device)
            weights, left_out = len(self._chosen.names), self._chosen.left_out
            log = run.log.info if weights else run.log.warning
            log("mixed-precision.fp8", phases=self._fp8, weights=weights, left_out=left_out)

    def _lowered(self, name: str) -> AbstractContextManager[None]:
        lowered = name in self._fp8 and not is_measured()
        return intercepting(self._products) if lowered else NOTHING

    @hookimpl
    def around_forward(self, run: Run) -> AroundForward:
        """Run model and loss in the phase's dtype. Probes and evaluations have their own dtypes."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            name = _AT.get(moment, phase.name)
            dtype = self._dtypes[name]
            context = computing_in(dtype, run.device)
            if context is NOTHING:
                return following(phase=phase, moment=moment, **arguments)
            with context, self._lowered(name):
                loss = following(phase=phase, moment=moment, **arguments)
            wide = loss.value if dtype is torch.float32 else widened(loss.value)
            return loss if wide is loss.value else attrs.evolve(loss, value=wide)

        return forward

    @hookimpl
    def around_train_step(self) -> AroundTrainStep | None:
        """Before a step, reset the scaler if a failed step dropped the accumulated gradients."""
        if not self._fp16:
            return None

        def step(following: Callable[..., Any], **arguments: Any) -> Any:
            store, scaler = self._store, self._scaler
            if scaler.carried is not None and not any(map(store.has_gradient, store.spans())):
                scaler.carried = None
            return following(**arguments)

        return step

    @hookimpl
    def around_backward(self) -> AroundBackward | None:
        """Multiply the loss by the scale, so that small fp16 gradients do not vanish."""
        if not (self._fp16 or self._fp8):
            return None

        def backward(following: Callable[..., None], *, loss: torch.Tensor, phase: Phase) -> None:
            scaler, wanted = self._scaler, phase.name in self._fp16
            factor = scaler.before_backward(wanted=wanted) if self._fp16 else 1.0
            with self._lowered(phase.name):  # for recomputed forwards
                following(loss=loss if factor == 1.0 else loss * factor, phase=phase)

        return backward

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep | None:
        """Unscale the gradients, and adapt the scale to the outcome of the update."""
        if not self._fp16:
            return None

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
        """Return the loss scale (with fp16) and the number of fp8 products (with fp8)."""
        scale = {"loss_scale": self._scaler.current.scale} if self._fp16 else {}
        products = {"fp8_products": float(self._products.done)} if self._fp8 else {}
        return {**scale, **products}

    @hookimpl
    def diagnose(self) -> Iterable[Finding]:
        """Report the dtypes of this machine's devices."""
        return diagnosis.findings(diagnosis.devices())

    def state_dict(self) -> dict[str, Any]:
        """Return the scaler's state."""
        return self._scaler.state_dict()

    def check_state_dict(self, state: dict[str, Any]) -> None:
        """Raise ValueError if the saved gradients are scaled, and nothing would unscale them."""
        if state["carried"] and not self._fp16:
            msg = "its gradients have the loss scale of fp16; resume it with a phase in fp16"
            raise ValueError(msg)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._scaler.load_state_dict(state)
        if not self._fp16:  # an earlier version said so of each accumulation
            self._scaler.carried = None


def _line(said: Mapping[str, str]) -> str:
    """Return, for `{"full": "bf16", "evaluate": "fp32"}`, the line that says what runs where."""
    phases = {dtype: [name for name in said if said[name] == dtype] for dtype in said.values()}
    parts = [f"{dtype} in {', '.join(names)}" for dtype, names in phases.items()]
    return f"mixed-precision: {'; '.join(parts)}"
