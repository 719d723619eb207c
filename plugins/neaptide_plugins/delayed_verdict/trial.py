"""One jump on trial, and its tensors: what it added, and the mean of the weights afterwards."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from neaptide import ParameterStore, Span

POINTS = 4
"""Newest losses of averaged weights that the line is fitted to."""


@attrs.define(eq=False)
class JumpTrial:
    """The updates since a jump, and the losses it is judged by."""

    step: int
    """Number of the first update after the jump."""
    horizon: int
    regime: str
    expected: float | None
    """Loss of the averaged weights extrapolated from earlier verdicts; None before two of them."""
    seen: int = 0
    """Updates since the jump."""
    losses: list[list[float]] = attrs.field(factory=list)
    """For each batch the losses that `losses_of` returned."""

    @property
    def loss(self) -> float:
        """Mean loss of the averaged weights."""
        return statistics.fmean(kept for kept, *_ in self.losses)

    @property
    def gains(self) -> list[float]:
        """How much the jump lowers the loss, for each batch."""
        return [
            (undone - mirrored[0]) / 2 if mirrored else undone - kept
            for kept, undone, *mirrored in self.losses
        ]

    @property
    def gain(self) -> float:
        """Mean of the gains."""
        return statistics.fmean(self.gains)

    @property
    def error(self) -> float:
        """Standard error of the mean gain, from the spread over batches."""
        return statistics.stdev(self.gains) / math.sqrt(len(self.losses))


def extrapolated(points: list[list[float]], update: float) -> float | None:
    """Extrapolate to `update` a least-squares line through (update, loss) over log(1 + update).

    None if the newest `POINTS` points have fewer than two different updates.
    """
    newest = points[-POINTS:]
    if len({at for at, _ in newest}) < 2:  # noqa: PLR2004 - a line takes two
        return None
    places, losses = ([math.log1p(at) for at, _ in newest], [loss for _, loss in newest])
    line = statistics.linear_regression(places, losses)
    return line.intercept + line.slope * math.log1p(update)


@attrs.define(eq=False)
class TrialWeights:
    """By span, the jump in bfloat16 and the running mean of the weights, on one device."""

    device: torch.device
    dtype: torch.dtype
    """Dtype of the mean."""
    jump: dict[str, torch.Tensor] = attrs.field(factory=dict)
    mean: dict[str, torch.Tensor] = attrs.field(factory=dict)
    samples: dict[str, int] = attrs.field(factory=dict)
    """Samples in the mean of each weight that the jump on trial moved."""

    def reserve(self, spans: Iterator[Span]) -> None:
        """Allocate the tensors of these spans, once."""
        for span in spans:
            if span.name not in self.jump:
                self.jump[span.name] = self._zeros(span.shape, torch.bfloat16)
                self.mean[span.name] = self._zeros(span.shape, self.dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def forget(self) -> None:
        """Forget the last jump before a new one is recorded."""
        self.samples.clear()

    def record(self, name: str, delta: torch.Tensor) -> None:
        """Record what a jump added to a weight."""
        self.jump[name].copy_(delta)
        self.samples[name] = 0

    def average(self, name: str, weight: torch.Tensor, samples: int) -> None:
        """Add the weight to its mean as sample number `samples`, counted from 1.

        Ignore a weight that was frozen at the jump or at an earlier sample.
        """
        if self.samples.get(name) != samples - 1:
            return
        self.samples[name] = samples
        mean, now = self.mean[name], weight.to(self.device, torch.float32)
        mean.copy_(now if samples == 1 else mean.float().lerp_(now, 1.0 / samples))

    def complete(self, name: str) -> bool:
        """Return whether the jump moved a weight and its mean has all samples."""
        return name in self.samples and self.samples[name] == max(self.samples.values())

    def moved(self, span: Span, jumps: float, on: torch.device) -> torch.Tensor:
        """Return the mean plus `jumps` times the jump, in float32."""
        mean = self.mean[span.name].to(on, torch.float32)
        return torch.add(mean, self.jump[span.name].to(on), alpha=jumps)

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors."""
        return {
            "jump": dict(self.jump),
            "mean": dict(self.mean),
            "samples": dict(self.samples),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the tensors that `state_dict` returned."""
        for part, saved in (("jump", state["jump"]), ("mean", state["mean"])):
            setattr(self, part, {name: held.to(self.device) for name, held in saved.items()})
        self.samples = dict(state["samples"])


def losses_of(
    store: ParameterStore, kept: TrialWeights, probe: Callable[[], float], contrast: str
) -> list[float]:
    """Return the losses of the mean weights, of the mean minus the jump and, mirrored, plus it.

    The weights are restored bit for bit, also after an error.
    """
    before, losses = store.snapshot(on=kept.device), []
    try:
        for jumps in (0.0, -1.0, 1.0) if contrast == "mirrored" else (0.0, -1.0):
            for span in store.spans():
                if span.trainable and kept.complete(span.name):
                    with store.loan(span, "write") as weight, torch.no_grad():
                        weight.copy_(kept.moved(span, jumps, weight.device))
            losses.append(probe())
    finally:
        store.restore(before)
    return losses
