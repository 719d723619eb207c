"""The drift of a sequence of weights over a window, in one signed accumulator."""

from __future__ import annotations

import attrs
import torch


def window_at(update: int, fraction: float, shortest: int, longest: int, sample_every: int) -> int:
    """Return the half-length, in updates, of the window that begins after `update` updates.

    The whole window is to span `fraction` of all updates at its end. Each half is a multiple of
    `sample_every`, at least one sample.
    """
    wanted = update * fraction / (1.0 - fraction)
    whole = min(max(wanted, shortest), longest)
    return max(1, round(whole / 2 / sample_every)) * sample_every


@attrs.define(eq=False)
class DriftWindow:
    """mean(second half) - mean(first half) of the weights, without keeping a snapshot.

    Each sample is added with weight -1/n in the first half and +1/n in the second, n samples a
    half. Summed by parts this is a sum of the updates in between with triangular weights, largest
    in the middle of the window. Accumulated in float32: the weights cancel, their drift is small.
    """

    half: int
    """Updates in each half."""
    sample_every: int
    device: torch.device
    """Where the accumulator lies."""
    position: int = 0
    """Updates seen so far."""
    sums: dict[str, torch.Tensor] = attrs.field(factory=dict)

    @property
    def full(self) -> bool:
        """Whether both halves are in."""
        return self.position >= 2 * self.half

    @property
    def samples_next(self) -> bool:
        """Whether the coming update is one to sample."""
        return not self.full and (self.position + 1) % self.sample_every == 0

    def add(self, name: str, weight: torch.Tensor) -> None:
        """Take a sample of one weight after the coming update, before `advance`."""
        if not weight.is_floating_point():
            return
        sign = 1.0 if self.position + 1 > self.half else -1.0
        share = sign * self.sample_every / self.half
        if name not in self.sums:
            self.sums[name] = torch.zeros(weight.shape, dtype=torch.float32, device=self.device)
        self.sums[name].add_(weight.to(self.device, torch.float32), alpha=share)

    def advance(self) -> None:
        """Count one update."""
        self.position += 1

    def reach(self, scale: float, horizon: int) -> tuple[float, int]:
        """Return the scale of a jump of at most `horizon` updates, and the updates it stands for.

        The means of the halves lie `half` updates apart: `scale` of their distance is
        `scale * half` updates of drift.
        """
        scale = min(scale, horizon / self.half)
        return scale, max(1, round(scale * self.half))
