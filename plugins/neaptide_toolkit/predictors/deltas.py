"""The sum of several predicted changes of the weights, stored until one jump applies the sum.

A predicted change is called a delta, and applying it is called a jump.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from .held_tensors import HeldTensor, pieces, seed_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .held_tensors import Storage
    from .settings import State
    from .window import Window


@attrs.define(eq=False)
class Deltas:
    """The sum of `count` deltas for each weight. The sum replaces `horizon` updates."""

    storage: Storage
    state: State
    sums: dict[str, HeldTensor] = attrs.field(factory=dict)
    count: int = 0
    horizon: int = 0

    def reserve(self, name: str, shape: tuple[int, ...]) -> None:
        """Allocate the sum of a weight's deltas, unless a sum of this shape and format exists."""
        held = self.sums.get(name)
        if held is None or not held.fits(shape, self.state):
            self.sums[name] = self.storage.zeros(shape, self.state)

    def add(self, name: str, delta: torch.Tensor, when: int) -> None:
        """Add one delta of a weight to the weight's sum.

        A sum in bfloat16 or int8 is rounded stochastically. The seed depends on `when`, the number
        of updates so far, so each rounding uses other random numbers.
        """
        self.reserve(name, tuple(delta.shape))
        flat = delta.reshape(-1)
        for start, stop in pieces(len(flat)):
            part = flat[start:stop].to(self.storage.proposes_on, torch.float32)
            self.sums[name].add(start, part, 1.0, seed_of(when, name, "delta", start))

    def take(self, window: Window, gains: Sequence[float], horizon: int, when: int) -> None:
        """Add one delta that replaces `horizon` updates: the sum of `gains[j] * rows[j]`."""
        for name in window.rows:
            delta = window.combined(name, gains)
            if delta is not None:
                self.add(name, delta, when)
        self.count += 1
        self.horizon += horizon

    def total(self, name: str, scale: float) -> torch.Tensor | None:
        """Return `scale` times the sum of a weight's deltas, float32; None if there is no sum."""
        held = self.sums.get(name)
        return None if held is None else held.whole(self.storage.proposes_on) * scale

    def clear(self) -> None:
        """Set all sums to zero."""
        for held in self.sums.values():
            held.clear()
        self.count = self.horizon = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "count": self.count,
            "horizon": self.horizon,
            "sums": {name: held.state_dict() for name, held in self.sums.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`."""
        self.count, self.horizon = saved["count"], saved["horizon"]
        self.sums = {name: self.storage.load(held) for name, held in saved["sums"].items()}
