"""Connects the low-precision backward to the hooks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide_toolkit.low_precision import Chosen, choose_weights
from neaptide_toolkit.tensors import tensor_bytes

from . import messages
from .config import LowPrecisionBackwardConfig
from .lowering import Lowering
from .passes import Passes
from .refusals import check_hardware, measured

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from neaptide import (
        AroundBackward,
        AroundForward,
        AroundOptimizerStep,
        Ledger,
        ParameterStore,
        Phase,
        Run,
    )

_NAME = "low-precision-backward"


@attrs.define(eq=False)
class LowPrecisionBackward(Plugin[LowPrecisionBackwardConfig]):
    """Uses a low-precision backward in the configured phases, until its error exceeds a limit."""

    _chosen: Chosen = attrs.field(init=False)
    _lowering: Lowering = attrs.field(init=False)
    _passes: Passes = attrs.field(init=False)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights before another plugin moves a weight."""
        config = self.config
        try:
            self._chosen = choose_weights(
                model,
                include=config.include,
                exclude=config.exclude,
                min_elements=config.min_elements,
            )
        except ValueError as error:
            msg = f"{error} @ plugins.{_NAME}.include"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Check the hardware, choose the gradients to measure, and log the chosen weights."""
        config, chosen = self.config, self._chosen
        check_hardware(config, run.device)
        self._lowering = Lowering(
            config.dtype,
            run.config.seed,
            chosen,
            measured(model, store, chosen),
            run.device,
            config.min_rows,
            config.check_every,
            config.limit,
        )
        self._passes = Passes(self._lowering, config.phases, store, run.log)
        messages.started(run.log, self._lowering)

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Run training forwards whose backward will be in low precision.

        If a measurement is due, measure first.
        """
        return self._passes.forward

    @hookimpl
    def around_backward(self) -> AroundBackward:
        """Run backwards in low precision.

        With activation checkpointing, a backward computes some forwards again. The products in
        these forwards also get a low-precision backward.
        """
        return self._passes.backward

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep:
        """Count the updates since the last measurement.

        Warn once about chosen weights that occurred in no product.
        """
        return self._passes.update

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the bytes of the meter's gradients and of the largest weight's rounding buffers."""
        lowering = self._lowering
        ledger = ledger.add(_NAME, "measured.gradients", "device", tensor_bytes(lowering.held))
        if not self._passes.active(phase):
            return ledger
        nbytes = self._chosen.largest + lowering.workspace
        return ledger.add(_NAME, "rounded.weight", "device", nbytes, ("backward",))

    @hookimpl
    def collect_metrics(self, phase: Phase) -> Mapping[str, float]:
        """Return the measured `extra_variance`, and the numbers of lowered and exact products."""
        lowering = self._lowering
        ratio = {} if lowering.ratio is None else {"extra_variance": lowering.ratio}
        return {
            **ratio,
            "low_precision_active": float(self._passes.active(phase)),
            "products_low": float(lowering.handler.low),
            "products_exact": float(lowering.handler.exact),
        }

    def report(self) -> str | None:
        """Return one line with the number of lowered products and the last measurement."""
        return messages.summary(self._lowering)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of seeds drawn, the meter's state and the last measurement's result."""
        return self._lowering.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._lowering.load_state_dict(state)
