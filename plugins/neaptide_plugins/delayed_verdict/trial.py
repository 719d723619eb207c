"""A jump on trial: an accepted jump that is not judged yet.

For each span (parameter) two tensors are stored: the jump, and the mean of the later weights.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from neaptide import ParameterStore, Span

POINTS = 4
"""Number of newest verdicts to whose losses `extrapolated` fits a line."""


@attrs.define(eq=False)
class JumpTrial:
    """The state of a jump on trial: the updates since the jump, and the losses for the verdict."""

    step: int
    """Number of the first update after the jump."""
    horizon: int
    regime: str
    expected: float | None
    """Loss of the averaged weights, extrapolated from the losses at earlier verdicts.

    None if there were fewer than two verdicts.
    """
    seen: int = 0
    """Number of updates since the jump."""
    losses: list[list[float]] = attrs.field(factory=list)
    """For each batch, the list that `losses_of` returned."""

    @property
    def loss(self) -> float:
        """Mean loss of the averaged weights."""
        return statistics.fmean(kept for kept, *_ in self.losses)

    @property
    def gains(self) -> list[float]:
        """The gain on each batch, as the setting `contrast` defines it."""
        return [
            (undone - mirrored[0]) / 2 if mirrored else undone - kept
            for kept, undone, *mirrored in self.losses
        ]

    @property
    def gain(self) -> float:
        """Mean gain over the batches."""
        return statistics.fmean(self.gains)

    @property
    def error(self) -> float:
        """Standard error of the mean gain, computed from the spread of the gains."""
        return statistics.stdev(self.gains) / math.sqrt(len(self.losses))


def extrapolated(points: list[list[float]], update: float) -> float | None:
    """Fit a line to earlier losses, and return the value of this line at `update`.

    The line is a least-squares fit of the loss as a function of log(1 + update). It is fitted to
    the newest `POINTS` pairs (update, loss) of `points`. Return None if all of these pairs have the
    same update, or if there are no pairs.
    """
    line = _line(points)
    return None if line is None else line.intercept + line.slope * math.log1p(update)


def fall_at(points: list[list[float]], update: float) -> float | None:
    """Return the reduction of the loss by one update at `update`, by the line of `extrapolated`."""
    line = _line(points)
    return None if line is None else -line.slope / (1.0 + update)


def _line(points: list[list[float]]) -> Any:
    newest = points[-POINTS:]
    if len({at for at, _ in newest}) < 2:  # noqa: PLR2004 - a line takes two
        return None
    places, losses = ([math.log1p(at) for at, _ in newest], [loss for _, loss in newest])
    return statistics.linear_regression(places, losses)


@attrs.define(eq=False)
class TrialWeights:
    """For each span, the jump in bfloat16 and the running mean of the weights, on one device."""

    device: torch.device
    dtype: torch.dtype
    """Dtype of the mean."""
    jump: dict[str, torch.Tensor] = attrs.field(factory=dict)
    mean: dict[str, torch.Tensor] = attrs.field(factory=dict)
    samples: dict[str, int] = attrs.field(factory=dict)
    """Number of samples in the mean of each weight that the jump on trial changed."""

    def reserve(self, spans: Iterator[Span]) -> None:
        """Allocate the tensors of those spans that have no tensors yet."""
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
        """Record `delta`, the change of a weight in a jump."""
        self.jump[name].copy_(delta)
        self.samples[name] = 0

    def average(self, weights: Mapping[str, torch.Tensor], samples: int) -> None:
        """Add weights of one dtype and device to their means, as sample number `samples` (from 1).

        A weight is ignored if the jump did not change it, or if an earlier sample is missing. The
        bits do not depend on which weights are given together.
        """
        names = [name for name in weights if self.samples.get(name) == samples - 1]
        self.samples.update(dict.fromkeys(names, samples))
        means, now = [self.mean[name] for name in names], [weights[name] for name in names]
        kept = (torch.float32, self.device)
        if {(each.dtype, each.device) for each in (*means, *now)} == {kept}:  # in one fused call
            if samples == 1:
                torch._foreach_copy_(means, now)
            else:
                torch._foreach_lerp_(means, now, 1.0 / samples)
            return
        for mean, weight in zip(means, now, strict=True):
            sample = weight.to(self.device, torch.float32)
            mean.copy_(sample if samples == 1 else mean.float().lerp_(sample, 1.0 / samples))

    def complete(self, name: str) -> bool:
        """Return whether the jump changed the weight, and the weight's mean has all samples."""
        return name in self.samples and self.samples[name] == max(self.samples.values())

    def moved(self, span: Span, jumps: float, on: torch.device) -> torch.Tensor:
        """Return the mean plus `jumps` times the jump, in float32."""
        mean = self.mean[span.name].to(on, torch.float32)
        return torch.add(mean, self.jump[span.name].to(on), alpha=jumps)

    def state_dict(self) -> dict[str, Any]:
        """Return the tensors and the numbers of samples."""
        return {
            "jump": dict(self.jump),
            "mean": dict(self.mean),
            "samples": dict(self.samples),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for part, saved in (("jump", state["jump"]), ("mean", state["mean"])):
            setattr(self, part, {name: held.to(self.device) for name, held in saved.items()})
        self.samples = dict(state["samples"])


def losses_of(
    store: ParameterStore, kept: TrialWeights, probe: Callable[[], float], contrast: str
) -> list[float]:
    """Return the losses with three sets of weights: mean, mean - jump, and mean + jump.

    The third loss is computed only if `contrast` is `mirrored`. At the end, also after an error,
    the weights of the model are restored bit for bit.
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
