"""Gives each phase the weights that the table says, and measures what int8 costs."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import ConfigError, Plugin, hookimpl
from neaptide.api import buffers, rng
from neaptide.api.memory import MOMENTS
from neaptide.api.phases import TRAINED

from .accounting import OWNER, Footprint, held, trained
from .config import Int8Config
from .grid import check_trainable
from .holding import Holding, Quantizer
from .measuring import Measuring
from .reach import Reach
from .scheme import Scheme, bytes_of
from .targets import find
from .training import Training
from .weight import computing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch import nn

    from neaptide import Ledger, ParameterStore, Phase, Run
    from neaptide.api.memory import Moment

    from .targets import Target


@attrs.define(eq=False)
class Int8(Plugin[Int8Config]):
    """Codes while a forward without gradients runs, or codes instead of weights in training.

    The former are made when the first forward that wants them comes: a Predict phase in which
    nothing is proposed costs nothing.
    """

    _targets: list[Target] = attrs.field(init=False, factory=list)
    _run: Run = attrs.field(init=False)
    _reach: Reach = attrs.field(init=False)
    _holding: Holding | None = attrs.field(init=False, default=None)
    _training: Training = attrs.field(init=False)
    _leave: Callable[[], None] | None = attrs.field(init=False, default=None)
    _measuring: Measuring = attrs.field(init=False)

    @hookimpl
    def convert_model(self, model: nn.Module) -> None:
        """Choose the weights, before anything is allocated for them."""
        config = self.config
        try:
            self._targets = find(model, config.include, config.exclude, self._scheme)
            if self._trains_int8:
                check_trainable(self._targets)
        except ValueError as error:
            msg = f"{error} @ plugins.{OWNER}"
            raise ConfigError(msg) from error

    @hookimpl
    def on_run_start(self, run: Run, model: nn.Module, store: ParameterStore) -> None:
        """Watch the weights, and say what will be quantized."""
        config, scheme = self.config, self._scheme
        quantizer = Quantizer(
            scheme=scheme,
            calibration=None if config.dynamic_range else config.calibration,
            percentile=config.percentile,
        )
        reach = self._reach = Reach(model, store, run.device)
        self._run = run
        self._measuring = Measuring(config.measure_every, config.gap_limit)
        self._check_kept()
        self._training = Training(self._targets, scheme, run.device, reach.lent, reach.keep)
        holding = self._holding = Holding(self._targets, quantizer, run.device, reach)
        self._leave = store.watch(lambda span: holding.outdate(span.name))
        run.log.info(
            "int8.started",
            weights=len(self._targets),
            full_bytes=sum(target.parameter.nbytes for target in self._targets),
            int8_bytes=sum(footprint.codes for footprint in self._footprints()),
        )

    def _check_kept(self) -> None:
        stuck = [target.name for target in self._targets if not self._reach.frees(target)]
        if self._trains_int8 and stuck:
            msg = (
                f"training in int8 needs weights that stay on the device and share no memory, and "
                f"{stuck[0]!r} does not (of {len(stuck)} such); use 'full' there, exclude their "
                f"modules, do without streaming, or drop the state dicts that hold them "
                f"@ plugins.{OWNER}.full"
            )
            raise ConfigError(msg)

    @hookimpl
    def on_run_end(self) -> None:
        """Put the full weights back."""
        if self._leave is not None:
            self._leave()
        if self._holding is not None:
            try:
                self._holding.release()
            finally:
                self._training.end()

    @hookimpl
    def on_phase_enter(self, phase: Phase) -> None:
        """Have the weights that the coming phase trains."""
        if phase.applies_prediction:
            return  # its forwards say what they want
        self._begun.release()
        if getattr(self.config, phase.name, "full") == "int8":
            self._training.begin()
        else:
            self._training.end()

    @hookimpl
    def on_phase_exit(self, following: Phase | None) -> None:
        """Before a resume, have the weights as they are where nothing has begun."""
        if following is None:
            self._begun.release()
            self._training.end()

    @hookimpl
    def around_forward(self) -> Callable[..., Any]:
        """Compute with the weights that the moment wants."""

        def forward(
            following: Callable[..., Any], *, phase: Phase, moment: str, **arguments: Any
        ) -> Any:
            holding = self._begun

            def call() -> Any:
                with self._computing():
                    return following(phase=phase, moment=moment, **arguments)

            if self._training.begun:
                return call()
            if moment == "train" or getattr(self.config, _SETTINGS[moment]) == "full":
                holding.release()
                return call()
            if moment == "probe" and not holding.held:
                return self._first_probe(call, arguments["model"])
            holding.hold(exempt=self._measuring.exempt)
            holding.refresh()
            return call()

        return forward

    def _computing(self) -> AbstractContextManager[None]:
        return computing(quantized=self._begun.held or self._training.begun)

    def _first_probe(self, call: Callable[[], Any], model: nn.Module) -> Any:
        """Hold the weights; where it is time, compare the probe with one of the full weights."""
        measuring, holding = self._measuring, self._begun
        if not measuring.is_due():
            holding.hold(exempt=measuring.exempt)
            return call()
        with rng.preserved(), buffers.preserved(model):
            full = float(call().mean)
        holding.hold(exempt=measuring.exempt, measured=True)
        loss = call()
        raised = measuring.note(full, float(loss.mean), holding.errors)
        if raised:
            gap, limit = measuring.measured["loss_gap"], measuring.limit
            self._run.log.warning(
                "int8.precision_raised", loss_gap=gap, limit=limit, weights=raised
            )
        return loss

    @hookimpl
    def around_backward(self) -> Callable[..., Any] | None:
        """Recompute with the weights that the forward had."""
        return _within(self._computing) if self._trains_int8 else None

    @hookimpl
    def around_optimizer_step(self) -> Callable[..., Any] | None:
        """Round each update by chance of its own."""
        return _within(self._training.updating) if self._trains_int8 else None

    @hookimpl
    def around_predict(self) -> Callable[..., Any]:
        """Put the full weights back when Predict is over, however it ended."""
        return _within(self._released)

    @contextmanager
    def _released(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._begun.release()

    @hookimpl
    def around_evaluate(self) -> Callable[..., Any] | None:
        """Hold the weights for as long as an evaluation is under way."""
        if self.config.evaluate == "full":
            return None
        return _within(self._evaluated)

    @contextmanager
    def _evaluated(self) -> Iterator[None]:
        with self._released():
            if not self._training.begun:
                self._begun.hold(exempt=self._measuring.exempt)
            yield

    @hookimpl
    def estimate_memory(self, ledger: Ledger, phase: Phase) -> Ledger:
        """State codes in the place of weights, and where those are meanwhile."""
        config, footprints = self.config, list(self._footprints())
        before = "full" if phase.applies_prediction else phase.name  # Predict has what Full left
        if getattr(config, before, "full") == "int8":
            return trained(ledger, footprints)
        moments: set[Moment] = set()
        if phase.applies_prediction and config.predict == "int8":
            moments.update(MOMENTS)  # a jump is all there is of Predict
        moments.discard("evaluate")
        if config.evaluate == "int8":
            moments.add("evaluate")
        return held(ledger, footprints, frozenset(moments))

    def _footprints(self) -> Iterator[Footprint]:
        for target in self._targets:
            if target.name not in self._measuring.exempt:
                shape, resident = target.parameter.shape, self._reach.is_resident(target)
                # What is set aside already is counted where it is.
                freed = self._training.begun or self._reach.frees(target)
                yield Footprint(
                    target.parameter.nbytes if freed else 0,
                    bytes_of(shape, self._scheme, target.channel),
                    "device" if resident else "host",
                )

    @hookimpl
    def collect_metrics(self) -> Mapping[str, float]:
        """Return what was measured last, and how many weights int8 is for."""
        left = sum(target.name not in self._measuring.exempt for target in self._targets)
        return {**self._measuring.measured, "int8_weights": float(left)}

    @property
    def _begun(self) -> Holding:
        assert self._holding is not None, "the run has started"
        return self._holding

    @property
    def _scheme(self) -> Scheme:
        return Scheme(self.config.granularity, self.config.block, self.config.symmetric)

    @property
    def _trains_int8(self) -> bool:
        return any(getattr(self.config, name) == "int8" for name in TRAINED)

    def report(self) -> str | None:
        """Return what int8 weights take, and what they cost."""
        weights = [each for each in self._targets if each.name not in self._measuring.exempt]
        full = sum(each.parameter.nbytes for each in weights)
        codes = sum(footprint.codes for footprint in self._footprints())
        return (
            f"{len(weights)} of {len(self._targets)} weights as int8: {codes} bytes in place of "
            f"{full}; {self._measuring.told()}"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return which weights keep their precision, when to measure again, and what rounds."""
        training = self._training
        return {
            **self._measuring.state_dict(),
            "trained": training.begun,
            "moment": training.moment,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        training = self._training
        self._measuring.load_state_dict(state)
        training.moment = state["moment"]
        if state["trained"] and self._trains_int8:
            training.begin()  # what was saved is on the grid, and stays as it is


def _within(context: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    def middleware(following: Callable[..., Any], **arguments: Any) -> Any:
        with context():
            return following(**arguments)

    return middleware


_SETTINGS = {"probe": "predict", "evaluate": "evaluate"}
"""Which setting speaks for a moment."""
