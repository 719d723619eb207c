"""Two running fits of the loss: its current level, and a line over log(learning done).

"Learning done" is the sum of the learning-rate schedule's factors over all updates so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET = 30.0
"""Added to the learning done, so that its logarithm is finite at the start."""
STIFFNESS = 0.1
"""Added to the sum of squares of x: a penalty on slopes from few losses."""
POINTS = 8
"""Largest number of points at which `learning` evaluates the schedule."""
SPREAD = 0.98
"""Decay, per loss, of the mean squared distance from the level."""
FAR = 10.0
"""Largest distance of a loss from the level, in spreads; a loss farther away is clipped."""
LEAST_SPREAD = 0.01
"""Least spread, as a share of the level: it allows losses to change after constant losses."""
SETTLED = 10
"""Losses needed before any loss is clipped."""


def learning(factor: Callable[[int], float], done: int, ahead: int) -> float:
    """Return the sum of the schedule's `factor(update)` over `ahead` updates after `done`.

    The sum is approximated by the midpoints of at most `POINTS` equal parts.
    """
    points = min(POINTS, ahead)
    middles = (done + int((place + 0.5) * ahead / points) for place in range(points))
    return sum(map(factor, middles)) * ahead / max(1, points)


@attrs.define
class LossLevel:
    """An exponential average of the loss, and the spread of losses around it."""

    decay: float
    weight: float = 0.0
    total: float = 0.0
    spread_weight: float = 0.0
    squares: float = 0.0
    samples: int = 0

    def take(self, loss: float) -> None:
        """Add one finite loss."""
        self.samples += 1
        self.weight = self.decay * self.weight + 1.0
        self.total = self.decay * self.total + loss
        away = loss - self.now
        self.spread_weight = SPREAD * self.spread_weight + 1.0
        self.squares = SPREAD * self.squares + away * away

    def bounded(self, loss: float) -> float:
        """Return `loss`, clipped to `FAR` spreads from the level.

        If losses stay at a new value, the spread grows, and a few updates later such losses are not
        clipped any more.
        """
        room = FAR * max(self.spread, LEAST_SPREAD * abs(self.now))
        if self.samples < SETTLED or not room:
            return loss
        return max(self.now - room, min(self.now + room, loss))

    @property
    def spread(self) -> float:
        """Root mean square distance of the losses from the average; 0 before the first loss."""
        return math.sqrt(self.squares / self.spread_weight) if self.spread_weight else 0.0

    @property
    def now(self) -> float:
        """The average; 0 before the first loss."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def unit(self) -> float:
        """The unit for changes of the loss: the magnitude of the level plus the spread."""
        return abs(self.now) + self.spread


@attrs.define
class LossCurve:
    """A least-squares line of the loss over log(learning done), with lower weights for old losses.

    After n losses, loss number k has the weight (k / n) ** power. Over the last part of a run such
    a line fits plateaus, power laws, and noise that shrinks with the learning rate.
    """

    power: float
    samples: int = 0
    weight: float = 0.0
    x: float = 0.0
    """Weighted mean of x."""
    y: float = 0.0
    """Weighted mean of the losses."""
    xx: float = 0.0
    """Weighted sum of squares of x around its mean."""
    xy: float = 0.0
    """Weighted sum of products of x and the loss around their means."""

    def take(self, x: float, loss: float) -> None:
        """Add one finite loss at `x`, the logarithm of the learning done."""
        fading = (self.samples / (self.samples + 1)) ** self.power
        self.samples += 1
        before = fading * self.weight
        self.weight = before + 1.0
        dx, dy = x - self.x, loss - self.y
        share = before / self.weight
        self.xx = fading * self.xx + share * dx * dx
        self.xy = fading * self.xy + share * dx * dy
        self.x += dx / self.weight
        self.y += dy / self.weight

    @property
    def slope(self) -> float:
        """Change of the loss per unit of x."""
        return self.xy / (self.xx + STIFFNESS)

    def at(self, x: float) -> float:
        """Return the line's loss at `x`."""
        return self.y + self.slope * (x - self.x)
