"""Which weights each phase, and each moment in it, computes with."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.api import buffers, rng

from .held_weights import HeldWeights, Quantizer
from .loss_gap import LossGap
from .scheme import Scheme
from .training import Training
from .weight import computing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from neaptide import Phase, WeighedLoss

    from .config import Int8Config
    from .full_weights import FullWeights
    from .targets import Target

_SETTINGS = {"probe": "predict", "evaluate": "evaluate"}
"""Which setting speaks for a moment."""


@attrs.frozen(eq=False)
class PhaseWeights:
    """Puts codes or the full weights in place, as the settings say.

    Codes for forwards without gradients are made when the first that wants them comes: a Predict
    phase in which nothing is proposed costs nothing.

    Args:
        config: the settings.
        held_weights: codes while such forwards run.
        training: codes instead of weights.
        measuring: when the former are compared with the full weights, and what is exempt.
        warn: logs that weights are exempt from now on.
    """

    config: Int8Config
    held_weights: HeldWeights
    training: Training
    measuring: LossGap
    warn: Callable[..., Any]

    @classmethod
    def of(
        cls,
        config: Int8Config,
        targets: Sequence[Target],
        full_weights: FullWeights,
        device: torch.device,
        warn: Callable[..., Any],
    ) -> PhaseWeights:
        """Return one for a run whose weights are `targets`, computed with on `device`."""
        return cls(
            config,
            HeldWeights(targets, Quantizer.of(config), device, full_weights),
            Training(targets, Scheme.of(config), device, full_weights.lent, full_weights.keep),
            LossGap(config.measure_every, config.gap_limit),
            warn,
        )

    def enter(self, phase: Phase) -> None:
        """Have the weights that a phase trains; in Predict its forwards say what they want."""
        if phase.applies_prediction:
            return
        self.held_weights.release()
        if self.config.is_int8(phase.name):
            self.training.begin()
        else:
            self.training.end()

    def leave(self) -> None:
        """Have the full weights."""
        try:
            self.held_weights.release()
        finally:
            self.training.end()

    def forward(
        self, following: Callable[..., WeighedLoss], *, moment: str, **arguments: Any
    ) -> WeighedLoss:
        """Run `following` with the weights that the moment wants."""
        held_weights = self.held_weights

        def call() -> WeighedLoss:
            with self.computing():
                return following(moment=moment, **arguments)

        if self.training.begun:
            return call()
        if moment == "train" or not self.config.is_int8(_SETTINGS[moment]):
            held_weights.release()
            return call()
        if moment == "probe" and not held_weights.held:
            return self._first_probe(call, arguments["model"])
        held_weights.hold(exempt=self.measuring.exempt)
        held_weights.refresh()
        return call()

    def computing(self) -> AbstractContextManager[None]:
        """Compute meanwhile with what is held, or trained, now."""
        return computing(quantized=self.held_weights.held or self.training.begun)

    def _first_probe(self, call: Callable[[], WeighedLoss], model: nn.Module) -> WeighedLoss:
        """Hold the weights; where it is time, compare the probe with one of the full weights."""
        measuring, held_weights = self.measuring, self.held_weights
        if not measuring.is_due():
            held_weights.hold(exempt=measuring.exempt)
            return call()
        with rng.preserved(), buffers.preserved(model):
            full = float(call().mean)
        held_weights.hold(exempt=measuring.exempt, measured=True)
        loss = call()
        raised = measuring.note(full, float(loss.mean), held_weights.errors)
        if raised:
            gap, limit = measuring.measured["loss_gap"], measuring.limit
            self.warn("int8.precision_raised", loss_gap=gap, limit=limit, weights=raised)
        return loss

    @contextmanager
    def released(self) -> Iterator[None]:
        """Put the full weights back when this is over, however it ended."""
        try:
            yield
        finally:
            self.held_weights.release()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Hold the weights for as long as an evaluation is under way."""
        with self.released():
            if not self.training.begun:
                self.held_weights.hold(exempt=self.measuring.exempt)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return which weights keep their precision, when to measure again, and what rounds."""
        training = self.training
        return {
            **self.measuring.state_dict(),
            "trained": training.begun,
            "moment": training.moment,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.measuring.load_state_dict(state)
        self.training.moment = state["moment"]
        if state["trained"] and self.config.trains_int8:
            self.training.begin()  # what was saved is on the grid, and stays as it is


def within(context: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    """Return a middleware that goes on in a context of its own each time."""

    def middleware(following: Callable[..., Any], **arguments: Any) -> Any:
        with context():
            return following(**arguments)

    return middleware
