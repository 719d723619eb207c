"""Sends the products of training forwards through a low-precision backward, and meters it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Outcome, Plugin, hookimpl
from neaptide.api.memory import tensor_bytes
from neaptide_toolkit.gradient_error import is_measured
from neaptide_toolkit.low_precision import Chosen, choose_weights

from .config import LowPrecisionBackwardConfig
from .lowering import Lowering
from .refusals import check_hardware, measured

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import nn

    from neaptide import Ledger, ParameterStore, Phase, Run, WeighedLoss

    from .meter import Verdict

_NAME = "low-precision-backward"


@attrs.define(eq=False)
class LowPrecisionBackward(Plugin[LowPrecisionBackwardConfig]):
    """Lowers the backward in the phases of the config, until it is measured to be too coarse."""

    _chosen: Chosen = attrs.field(init=False)
    _lowering: Lowering = attrs.field(init=False)
    _store: ParameterStore = attrs.field(init=False)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights, while all of them are where they were built."""
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
        """Refuse what would be slower, choose what is measured, and say what was decided."""
        config, chosen = self.config, self._chosen
        check_hardware(config, run.device)
        sampled = measured(model, store, chosen)
        self._store = store
        self._lowering = Lowering(
            config.dtype,
            run.config.seed,
            chosen,
            sampled,
            run.device,
            config.min_rows,
            config.check_every,
            config.limit,
        )
        facts = {"dtype": config.dtype, "left_out": chosen.left_out}
        if chosen.names:
            weights = len(chosen.names)
            run.log.info(
                "low-precision-backward.started", weights=weights, sampled=sampled.elements, **facts
            )
        else:
            advice = "it does nothing here: lower min_elements, or name weights in include"
            run.log.warning("low-precision-backward.no_weights", advice=advice, **facts)

    @hookimpl
    def around_forward(self, run: Run) -> Callable[..., WeighedLoss]:
        """Run training forwards so that their backward is lowered; measure first where due."""
        lowering = self._lowering

        def forward(
            following: Callable[..., WeighedLoss],
            *,
            model: nn.Module,
            phase: Phase,
            moment: str,
            **arguments: Any,
        ) -> WeighedLoss:
            def call() -> WeighedLoss:
                return following(model=model, phase=phase, moment=moment, **arguments)

            if moment != "train" or not self._active(phase) or is_measured():
                return call()
            if lowering.meter.due:
                found = lowering.measure(model, self._store, call)
                if found is not None:
                    _tell(run, *found)
            if lowering.refused:
                return call()
            with lowering.lowered():
                return call()

        return forward

    @hookimpl
    def around_backward(self) -> Callable[..., None]:
        """Lower what is computed again inside of it, too."""

        def backward(following: Callable[..., None], *, phase: Phase, **arguments: Any) -> None:
            if not self._active(phase):
                following(phase=phase, **arguments)
                return
            with self._lowering.lowered():
                following(phase=phase, **arguments)

        return backward

    @hookimpl
    def around_optimizer_step(self, run: Run) -> Callable[..., Outcome]:
        """Count the updates between two measurements; tell once of weights nobody multiplied."""
        told = False

        def update(following: Callable[..., Outcome], *, phase: Phase, **arguments: Any) -> Outcome:
            nonlocal told
            outcome = following(phase=phase, **arguments)
            if outcome is Outcome.APPLIED and self._active(phase):
                self._lowering.meter.updates += 1
                unmet = set(self._chosen.names.values()) - self._lowering.handler.met
                if unmet and not told:
                    run.log.warning(
                        "low-precision-backward.not_met", weights=len(unmet), one=min(unmet)
                    )
                told = True
            return outcome

        return update

    def _active(self, phase: Phase) -> bool:
        lowering = self._lowering
        return (
            bool(self._chosen.names) and not lowering.refused and phase.name in self.config.phases
        )

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Add the gradients kept for the meter, the largest weight in 8 bits, and its rounding."""
        kept = tensor_bytes(self._lowering.held)
        ledger = ledger.add(_NAME, "measured.gradients", "device", kept)
        if not self._active(phase):
            return ledger
        codes = self._chosen.largest
        return ledger.add(
            _NAME, "rounded.weight", "device", codes + self._lowering.workspace, ("backward",)
        )

    @hookimpl
    def collect_metrics(self, phase: Phase) -> Mapping[str, float]:
        """Return the ratio last measured, whether this phase is lowered, and products so far."""
        lowering = self._lowering
        ratio = {} if lowering.ratio is None else {"extra_variance": lowering.ratio}
        return {
            **ratio,
            "low_precision_active": float(self._active(phase)),
            "products_low": float(lowering.handler.low),
            "products_exact": float(lowering.handler.exact),
        }

    def report(self) -> str | None:
        """Return how many products were lowered, and what was measured."""
        lowering, handler = self._lowering, self._lowering.handler
        text = f"{handler.low} products with a backward in {self.config.dtype}"
        if handler.exact:
            text += f", {handler.exact} exact (few rows, or other dtypes)"
        if lowering.ratio is not None:
            text += f"; extra variance {lowering.ratio:.2%}, as last measured"
        return f"{text}; fell back: {lowering.refused}" if lowering.refused else text

    def state_dict(self) -> dict[str, Any]:
        """Return the seeds drawn, the meter, and whether it has refused to go on."""
        return self._lowering.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._lowering.load_state_dict(state)


def _tell(run: Run, verdict: Verdict, metric: str) -> None:
    if verdict.passed:
        run.log.info("low-precision-backward.measured", extra_variance=verdict.ratio, metric=metric)
    else:
        run.log.warning(
            "low-precision-backward.fell_back",
            extra_variance=verdict.ratio,
            metric=metric,
            reason=verdict.reason,
            backward="exact for the rest of the run",
        )
