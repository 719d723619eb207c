"""The course of a loss as two running fits: its level now, and a line over log learning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable

OFFSET = 30.0
"""Updates added to those done before the logarithm is taken: the start is not infinitely long."""
STIFFNESS = 0.1
"""Added to the variance of log learning, in squares times samples: no slope from few losses."""
POINTS = 8
SPREAD = 0.98
"""Decay of the mean square around the level."""
FAR = 10.0
"""Spreads from the level at which a loss is cut off."""
LEAST_SPREAD = 0.01
"""By the level: losses that have stood still may move."""
SETTLED = 10
"""Losses before there is a spread to go by."""


def learning(factor: Callable[[int], float], done: int, ahead: int) -> float:
    """Return the sum of the schedule's `factor(update)` over `ahead` updates after `done`.

    By the values in the middles of eight parts, for `ahead` of eight or more.
    """
    points = min(POINTS, ahead)
    middles = (done + int((place + 0.5) * ahead / points) for place in range(points))
    return sum(map(factor, middles)) * ahead / max(1, points)


@attrs.define
class LossLevel:
    """An exponential average of the loss, and the mean distance of losses from it."""

    decay: float
    weight: float = 0.0
    total: float = 0.0
    spread_weight: float = 0.0
    squares: float = 0.0
    samples: int = 0

    def take(self, loss: float) -> None:
        """Count one finite loss."""
        self.samples += 1
        self.weight = self.decay * self.weight + 1.0
        self.total = self.decay * self.total + loss
        away = loss - self.now
        self.spread_weight = SPREAD * self.spread_weight + 1.0
        self.squares = SPREAD * self.squares + away * away

    def bounded(self, loss: float) -> float:
        """Return `loss`, or what is as far off as a loss may be: one batch that explodes.

        Where losses stay there, the spread has grown to let them through a few updates later.
        """
        room = FAR * max(self.spread, LEAST_SPREAD * abs(self.now))
        if self.samples < SETTLED or not room:
            return loss
        return max(self.now - room, min(self.now + room, loss))

    @property
    def spread(self) -> float:
        """Root of the mean square around the average; 0 before the first loss."""
        return math.sqrt(self.squares / self.spread_weight) if self.spread_weight else 0.0

    @property
    def now(self) -> float:
        """The average; 0 before the first loss."""
        return self.total / self.weight if self.weight else 0.0

    @property
    def unit(self) -> float:
        """What relative numbers are relative to: magnitude of the level and spread around it."""
        return abs(self.now) + self.spread


@attrs.define
class LossCurve:
    """A least-squares line of the loss over log(learning done), in which the past fades.

    After n losses the weight of the k-th is (k / n) ** power. Plateaus, power laws and noise that
    shrinks with the learning rate are all near a line over the last part of a run.
    """

    power: float
    samples: int = 0
    weight: float = 0.0
    x: float = 0.0
    """Weighted mean."""
    y: float = 0.0
    xx: float = 0.0
    """Weighted sum of squares around the mean."""
    xy: float = 0.0

    def take(self, x: float, loss: float) -> None:
        """Count one finite loss at `x`, the logarithm of the learning done."""
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
        """Change of the loss by unit of log learning."""
        return self.xy / (self.xx + STIFFNESS)

    def at(self, x: float) -> float:
        """Return the line's loss at `x`."""
        return self.y + self.slope * (x - self.x)
