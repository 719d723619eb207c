"""Two running fits of the loss: an average (the level), and a line over log(learning done).

"Learning done" is the sum of the learning-rate schedule's factors over all updates so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET = 30.0
"""Added to the learning done, because log(0) at the start would not be finite."""
STIFFNESS = 0.1
"""Penalty on the slope, added to the sum of squares of x. It matters while there are few losses."""
POINTS = 8
"""Largest number of points at which `learning` evaluates the schedule."""
SPREAD = 0.98
"""Decay, per loss, of the average squared distance between loss and level."""
FAR = 10.0
"""Largest distance of a loss from the level, in spreads; losses are clipped to this distance."""
LEAST_SPREAD = 0.01
"""Least spread used in clipping, divided by the level. Losses that are all equal have spread 0."""
SETTLED = 10
"""Number of losses before the first loss that may be clipped."""


def learning(factor: Callable[[int], float], done: int, ahead: int) -> float:
    """Return the sum of `factor(update)` over the `ahead` updates that follow update `done`.

    The sum is approximated: the updates are divided into at most `POINTS` equal parts, and `factor`
    is evaluated in the middle of each part.
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

        If the losses stay at a new value, the spread grows. After a few updates, losses at the new
        value are not clipped any more.
        """
        room = FAR * max(self.spread, LEAST_SPREAD * abs(self.now))
        if self.samples < SETTLED or not room:
            return loss
        return max(self.now - room, min(self.now + room, loss))

    @property
    def spread(self) -> float:
        """Root mean square distance between losses and level; 0 before the first loss."""
        return math.sqrt(self.squares / self.spread_weight) if self.spread_weight else 0.0

    @property
    def now(self) -> float:
        """The level: the exponential average of the losses; 0 before the first loss."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def unit(self) -> float:
        """The unit in which changes of the loss are measured: |level| + spread."""
        return abs(self.now) + self.spread


@attrs.define
class LossCurve:
    """A least-squares line of the loss over log(learning done). Old losses have lower weights.

    After n losses, loss number k has the weight (k / n) ** power. So the line fits the newest
    losses. These may be constant, follow a power law, or fall with the learning rate.
    """

    power: float
    samples: int = 0
    weight: float = 0.0
    x: float = 0.0
    """Weighted mean of the x values."""
    y: float = 0.0
    """Weighted mean of the losses."""
    xx: float = 0.0
    """Weighted sum of the squares (x - mean of x)**2."""
    xy: float = 0.0
    """Weighted sum of the products (x - mean of x) * (loss - mean of the losses)."""

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
        """Return the value of the line at `x`."""
        return self.y + self.slope * (x - self.x)
