"""A jump on trial, and its tensors: its change of the weights, and the mean of later weights."""

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
"""Number of newest losses of averaged weights to which the line is fitted."""


@attrs.define(eq=False)
class JumpTrial:
    """The number of updates since a jump, and the losses by which the jump is judged."""

    step: int
    """Number of the first update after the jump."""
    horizon: int
    regime: str
    expected: float | None
    """Loss of the averaged weights, extrapolated from the losses at earlier verdicts.

    None if there are fewer than two.
    """
    seen: int = 0
    """Updates since the jump."""
    losses: list[list[float]] = attrs.field(factory=list)
    """For each batch, the losses that `losses_of` returned."""

    @property
    def loss(self) -> float:
        """Mean loss of the averaged weights."""
        return statistics.fmean(kept for kept, *_ in self.losses)

    @property
    def gains(self) -> list[float]:
        """For each batch, the loss without the jump minus the loss with the jump."""
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
    """Return the loss at `update` on a least-squares line of the loss over log(1 + update).

    The line is fitted to the newest `POINTS` pairs (update, loss) of `points`. None if these pairs
    have fewer than two different updates.
    """
    newest = points[-POINTS:]
    if len({at for at, _ in newest}) < 2:  # noqa: PLR2004 - a line takes two
        return None
    places, losses = ([math.log1p(at) for at, _ in newest], [loss for _, loss in newest])
    line = statistics.linear_regression(places, losses)
    return line.intercept + line.slope * math.log1p(update)


@attrs.define(eq=False)
class TrialWeights:
    """For each span, the jump in bfloat16 and the running mean of the weights, on one device."""

    device: torch.device
    dtype: torch.dtype
    """Dtype of the mean."""
    jump: dict[str, torch.Tensor] = attrs.field(factory=dict)
    mean: dict[str, torch.Tensor] = attrs.field(factory=dict)
    samples: dict[str, int] = attrs.field(factory=dict)
    """Number of samples in the mean, for each weight that the jump on trial changed."""

    def reserve(self, spans: Iterator[Span]) -> None:
        """Allocate the tensors of these spans, once."""
        for span in spans:
            if span.name not in self.jump:
                self.jump[span.name] = self._zeros(span.shape, torch.bfloat16)
                self.mean[span.name] = self._zeros(span.shape, self.dtype)

    def _zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def forget(self) -> None:
        """Discard the last jump before a new jump is recorded."""
        self.samples.clear()

    def record(self, name: str, delta: torch.Tensor) -> None:
        """Record the change `delta` of a weight by a jump."""
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
        """Return whether the jump changed a weight and the weight's mean has all samples."""
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
    """Return the losses of the mean weights, of mean minus jump, and of mean plus jump.

    The last loss is only computed for the contrast `mirrored`. The model's weights are restored bit
    for bit, also after an error.
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
