"""Selects codes or full weights for each phase and for each moment in a phase."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs

from neaptide import buffers
from neaptide.api import rng

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
"""Maps each moment of a step that computes no gradients to the name of its setting."""


@attrs.frozen(eq=False)
class PhaseWeights:
    """Installs codes or full weights in the modules, as the settings require.

    Predict makes codes only when the first forward needs them. So a Predict phase in which no jump
    is proposed costs nothing.

    Args:
        config: the settings.
        held_weights: int8 weights for forwards without gradients.
        training: the int8 weights for phases that train in int8.
        measuring: compares `held_weights` with the full weights, and exempts weights from
            quantization.
        warn: logs a warning about newly exempt weights.
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
        """Return the `PhaseWeights` of a run that computes with `targets` on `device`."""
        return cls(
            config,
            HeldWeights(targets, Quantizer.of(config), device, full_weights),
            Training(targets, Scheme.of(config), device, full_weights.lent, full_weights.keep),
            LossGap(config.measure_every, config.gap_limit),
            warn,
        )

    def enter(self, phase: Phase) -> None:
        """Install the weights that a phase trains. In Predict, `forward` installs the weights."""
        if phase.applies_prediction:
            return
        self.held_weights.release()
        if self.config.is_int8(phase.name):
            self.training.begin()
        else:
            self.training.end()

    def leave(self) -> None:
        """Restore the full weights."""
        try:
            self.held_weights.release()
        finally:
            self.training.end()

    def forward(
        self, following: Callable[..., WeighedLoss], *, moment: str, **arguments: Any
    ) -> WeighedLoss:
        """Run `following` with codes or full weights, as the settings require for `moment`."""
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
        """Return a context in which a computation can use the current weights."""
        return computing(quantized=self.held_weights.held or self.training.begun)

    def _first_probe(self, call: Callable[[], WeighedLoss], model: nn.Module) -> WeighedLoss:
        """Run the first forward that judges a jump.

        This forward uses int8 weights. If a measurement is due, another forward runs before it,
        with the full weights.
        """
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
        """Restore the full weights when the context ends, also after an error."""
        try:
            yield
        finally:
            self.held_weights.release()

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        """Hold int8 weights during an evaluation."""
        with self.released():
            if not self.training.begun:
                self.held_weights.hold(exempt=self.measuring.exempt)
            yield

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loss gap and of int8 training (whether it runs, its counter)."""
        training = self.training
        return {
            **self.measuring.state_dict(),
            "trained": training.begun,
            "moment": training.moment,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.measuring.load_state_dict(state)
        self.training.moment = state["moment"]
        if state["trained"] and self.config.trains_int8:
            self.training.begin()  # the saved weights are on the grid, so rounding keeps them


def within(context: Callable[[], AbstractContextManager[None]]) -> Callable[..., Any]:
    """Return a middleware that calls the next middleware inside a new context."""

    def middleware(following: Callable[..., Any], **arguments: Any) -> Any:
        with context():
            return following(**arguments)

    return middleware
