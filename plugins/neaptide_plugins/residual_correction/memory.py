"""What the store remembers of each residual, and how a new jump weighs them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    import torch

_LARGEST = 3.0
"""Features are limited to this: most are shares or standard deviations."""


@attrs.frozen
class Remembered:
    """One stored residual: its slot and the state of the run at its jump."""

    slot: int
    born: int
    """Number of the residual, from 0; newer ones have larger numbers."""
    key: list[float]
    """The 64 features of `encode_state`, limited."""


@attrs.define(eq=False)
class ResidualMemory:
    """The newest residuals, at most `slots`."""

    slots: int
    entries: list[Remembered] = attrs.field(factory=list)
    """From the oldest to the newest."""
    count: int = 0
    """Residuals so far."""

    def free(self) -> int:
        """Return a slot for the next residual; forget the oldest if all are taken."""
        if len(self.entries) >= self.slots:
            return self.entries.pop(0).slot
        return next(slot for slot in range(self.slots) if slot not in self._taken())

    def _taken(self) -> set[int]:
        return {entry.slot for entry in self.entries}

    def add(self, slot: int, key: list[float]) -> None:
        """Remember a residual that is whole in its slot."""
        self.entries.append(Remembered(slot, self.count, key))
        self.count += 1

    def weights(self, key: list[float], neighbours: int, decay: float) -> list[tuple[int, float]]:
        """Return the slots of the nearest residuals with their weights, whose sum is 1.

        The distance d is the root mean square difference of the features. A weight is
        proportional to `decay ** age * exp(-d)`; the newest residual has age 0.
        """
        found = [(distance(key, entry.key), entry) for entry in self.entries]
        near = sorted(found, key=lambda one: (one[0], -one[1].born))[:neighbours]
        raw = [
            (entry.slot, decay ** (self.count - 1 - entry.born) * math.exp(-away))
            for away, entry in near
        ]
        total = math.fsum(weight for _, weight in raw)
        return [(slot, weight / total) for slot, weight in raw] if total > 0.0 else []

    def state_dict(self) -> dict[str, Any]:
        """Return the entries and the count."""
        return {"count": self.count, "entries": [attrs.asdict(each) for each in self.entries]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.count = state["count"]
        self.entries = [Remembered(**each) for each in state["entries"]]


def key_of(features: torch.Tensor) -> list[float]:
    """Return the features, limited, as the key of a residual."""
    return [max(-_LARGEST, min(_LARGEST, value)) for value in features.tolist()]


def distance(one: list[float], other: list[float]) -> float:
    """Return the root mean square difference of two keys."""
    return math.dist(one, other) / math.sqrt(len(one))
