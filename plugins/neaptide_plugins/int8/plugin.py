"""The plugin: chooses the weights to quantize, and sets their form in each phase."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl

from .accounting import OWNER, Footprint, estimated, footprints, summary
from .config import Int8Config
from .full_weights import FullWeights, check_kept
from .grid import check_trainable
from .phase_weights import PhaseWeights, within
from .scheme import Scheme
from .targets import find

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from neaptide import (
        AroundBackward,
        AroundEvaluate,
        AroundForward,
        AroundOptimizerStep,
        AroundPredict,
        Ledger,
        ParameterStore,
        Phase,
        Run,
    )

    from .targets import Target


@attrs.define(eq=False)
class Int8(Plugin[Int8Config]):
    """Uses int8 weights in forwards without gradients and, if so configured, in training."""

    _targets: list[Target] = attrs.field(init=False, factory=list)
    _full_weights: FullWeights = attrs.field(init=False)
    _phase_weights: PhaseWeights | None = attrs.field(init=False, default=None)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights to quantize, before memory is allocated for weights."""
        config = self.config
        try:
            self._targets = find(model, config.include, config.exclude, Scheme.of(config))
            if config.trains_int8:
                check_trainable(self._targets)
        except ValueError as error:
            msg = f"{error} @ plugins.{OWNER}"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Register for writes to the weights; log the number and bytes of the chosen weights."""
        config, targets, device = self.config, self._targets, run.device
        full_weights = self._full_weights = FullWeights(model, store, device)
        if config.trains_int8:
            check_kept(full_weights, targets)
        phase_weights = self._phase_weights = PhaseWeights.of(
            config, targets, full_weights, device, run.log.warning
        )
        self._leave = store.on_write(lambda span: phase_weights.held_weights.outdate(span.name))
        run.log.info(
            "int8.started",
            weights=len(targets),
            full_bytes=sum(target.parameter.nbytes for target in targets),
            int8_bytes=sum(footprint.codes for footprint in self._footprints()),
        )

    @hookimpl
    def on_run_end(self) -> None:
        """Restore the full weights."""
        if self._leave is not None:
            self._leave()
        if self._phase_weights is not None:
            self._phase_weights.leave()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Install the weights that the coming phase trains."""
        self._begun.enter(phase)

    @hookimpl
    def on_phase_exit(self, following: Phase | None) -> None:
        """At the end of the run, and before a saved state is loaded, restore the full weights."""
        if following is None:
            self._begun.leave()

    @hookimpl
    def around_forward(self) -> AroundForward:
        """Run each forward with codes or full weights, as the settings require for its moment."""
        return self._begun.forward

    @hookimpl
    def around_backward(self) -> AroundBackward | None:
        """In the backward, recompute blocks with the same form of weights as in the forward."""
        return within(self._begun.computing) if self.config.trains_int8 else None

    @hookimpl
    def around_optimizer_step(self) -> AroundOptimizerStep | None:
        """Use new random numbers to round the weights in each update."""
        return within(self._begun.training.updating) if self.config.trains_int8 else None

    @hookimpl
    def around_predict(self) -> AroundPredict:
        """Restore the full weights after Predict, also after an error."""
        return within(self._begun.released)

    @hookimpl
    def around_evaluate(self) -> AroundEvaluate | None:
        """Hold int8 weights during an evaluation."""
        return within(self._begun.evaluated) if self.config.is_int8("evaluate") else None

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """In the ledger, replace weights by codes, and move evicted full weights to RAM."""
        return estimated(ledger, phase, self.config, self._footprints())

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return the last measurement and the number of quantized weights."""
        measured = self._begun.measuring.measured
        return {**measured, "int8_weights": float(len(self._quantized()))}

    def report(self) -> str | None:
        """Return a text with the bytes of the int8 weights and the last measurement."""
        sizes = summary(self._quantized(), len(self._targets), self._footprints())
        return f"{sizes}; {self._begun.measuring.told()}"

    def state_dict(self) -> dict[str, Any]:
        """Return the state of `PhaseWeights`."""
        return self._begun.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self._begun.load_state_dict(state)

    @property
    def _begun(self) -> PhaseWeights:
        assert self._phase_weights is not None, "the run has started"
        return self._phase_weights

    def _quantized(self) -> list[Target]:
        exempt = self._begun.measuring.exempt
        return [target for target in self._targets if target.name not in exempt]

    def _footprints(self) -> list[Footprint]:
        trained = self._begun.training.begun
        return footprints(
            self._quantized(), Scheme.of(self.config), self._full_weights, trained=trained
        )
