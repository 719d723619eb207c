"""Holds weights as int8 while forwards of their phase run, and measures what that costs."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
from torch.compiler import set_stance

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.rng import preserved

from .adapting import relative_gap, worst_quarter
from .config import Int8Config
from .holding import Holding, Quantizer
from .reach import Reach
from .scheme import Scheme, bytes_of
from .targets import find

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn

    from neaptide import Ledger, ParameterStore, Phase, Run
    from neaptide.memory import Moment, Tier

    from .targets import Target

_NAME = "int8"


@attrs.define(eq=False)
class Int8(Plugin[Int8Config]):
    """One precision for the probes of Predict and one for evaluations; training has full weights.

    Codes are made when the first forward that wants them comes: a Predict phase that proposes
    nothing costs nothing.
    """

    _targets: list[Target] = attrs.field(init=False, factory=list)
    _reach: Reach = attrs.field(init=False)
    _holding: Holding | None = attrs.field(init=False, default=None)
    _run: Run = attrs.field(init=False)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)
    _held_phases: int = attrs.field(init=False, default=0)
    _exempt: list[str] = attrs.field(init=False, factory=list)
    _measured: dict[str, float] = attrs.field(init=False, factory=dict)

    @property
    def _scheme(self) -> Scheme:
        config = self.config
        return Scheme(config.granularity, config.block, config.symmetric)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights, before anything is allocated for them."""
        config = self.config
        try:
            self._targets = find(model, config.include, config.exclude, self._scheme)
        except ValueError as error:
            msg = f"{error} @ plugins.{_NAME}"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Watch the weights, and say what will be quantized."""
        config = self.config
        quantizer = Quantizer(
            scheme=self._scheme,
            calibration=None if config.dynamic_range else config.calibration,
            percentile=config.percentile,
        )
        self._run, self._reach = run, Reach(model, store, run.device)
        self._holding = holding = Holding(self._targets, quantizer, run.device, self._reach)
        self._leave = store.watch(lambda span: holding.outdate(span.name))
        run.log.info(
            "int8.started",
            weights=len(self._targets),
            full_bytes=sum(target.parameter.nbytes for target in self._targets),
            int8_bytes=sum(map(self._code_bytes, self._targets)),
        )

    @hookimpl
    def on_run_end(self) -> None:
        """Put the full weights back."""
        if self._leave is not None:
            self._leave()
        if self._holding is not None:
            self._holding.release()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Put the full weights back where training begins."""
        if not phase.applies_prediction:
            self._begun.release()

    @hookimpl
    def around_forward(self) -> Callable[..., Any]:
        """Compute with the weights that the moment wants."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            holding = self._begun

            def call() -> Any:
                # Compiled code would be compiled anew for weights of another kind.
                with set_stance("force_eager") if holding.held else nullcontext():
                    return following(phase=phase, moment=moment, **arguments)

            wanted = moment != "train" and getattr(self.config, _SETTINGS[moment]) == "int8"
            if not wanted:
                holding.release()
                return call()
            if holding.held or moment != "probe":
                holding.hold(exempt=self._exempt)
                holding.refresh()
                return call()
            return self._first_probe(call)

        return forward

    def _first_probe(self, call: Callable[[], Any]) -> Any:
        """Hold the weights; where it is time, compare the probe with one of the full weights."""
        every, holding = self.config.measure_every, self._begun
        self._held_phases += 1
        if not every or (self._held_phases - 1) % every:
            holding.hold(exempt=self._exempt)
            return call()
        with preserved():
            full = float(call().mean)
        holding.hold(exempt=self._exempt, measured=True)
        loss = call()
        self._measured = {
            "loss_gap": relative_gap(full, float(loss.mean)),
            "quantization_error": max(holding.errors.values(), default=0.0),
        }
        self._adapt(holding)
        return loss

    def _adapt(self, holding: Holding) -> None:
        gap, limit = self._measured["loss_gap"], self.config.gap_limit
        if limit is None or abs(gap) <= limit or not holding.errors:
            return
        raised = worst_quarter(holding.errors)
        self._exempt += raised
        self._run.log.warning("int8.precision_raised", loss_gap=gap, limit=limit, weights=raised)

    @hookimpl
    def around_evaluate(self) -> Callable[..., Any] | None:
        """Hold the weights for as long as an evaluation is under way."""
        if self.config.evaluate == "full":
            return None

        def evaluation(following: Callable[..., float], **arguments: Any) -> float:
            holding = self._begun
            try:
                holding.hold(exempt=self._exempt)
                return following(**arguments)
            finally:
                holding.release()

        return evaluation

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """Full weights in RAM and codes on the device, in the moments of int8."""
        moments = self._moments(phase)
        if not moments:
            return ledger
        for tier, full, codes in self._bytes():
            ledger = ledger.move("weights", "device", "host", full, moments)
            ledger = ledger.add(_NAME, "weights.int8", tier, codes, moments)
        return ledger

    def _moments(self, phase: Phase) -> frozenset[Moment]:
        probed = phase.applies_prediction and self.config.predict == "int8"
        evaluated = self.config.evaluate == "int8"
        moments: dict[Moment, bool] = {"predict": probed, "evaluate": evaluated}
        return frozenset(moment for moment, is_int8 in moments.items() if is_int8)

    def _bytes(self) -> Iterator[tuple[Tier, int, int]]:
        """Yield for each weight where its codes lie, the bytes freed, and those of the codes."""
        for target in self._targets:
            if target.name not in self._exempt:
                full = target.parameter.nbytes if self._reach.frees(target) else 0
                away = self._reach.home(target) != self._run.device
                yield "host" if away else "device", full, self._code_bytes(target)

    def _code_bytes(self, target: Target) -> int:
        return bytes_of(target.parameter.shape, self._scheme, target.channel)

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return what was measured last, and how many weights int8 is for."""
        return {**self._measured, "int8_weights": float(len(self._targets) - len(self._exempt))}

    @property
    def _begun(self) -> Holding:
        assert self._holding is not None, "the run has started"
        return self._holding

    def state_dict(self) -> dict[str, Any]:
        """Return which weights keep their precision, and when to measure again."""
        return {"held_phases": self._held_phases, "exempt": list(self._exempt)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._begun.release()
        self._held_phases, self._exempt = state["held_phases"], list(state["exempt"])


_SETTINGS = {"probe": "predict", "evaluate": "evaluate"}
"""Which setting speaks for a moment."""
