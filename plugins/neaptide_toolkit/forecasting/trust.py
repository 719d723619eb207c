"""How much of the networks' answers is used."""

from __future__ import annotations

import attrs

FADING = 0.98
"""Decay of the sums at each observed forecast."""
DOUBT = 1e-3
"""Added to the sum of squared answers: the trust is small until there is evidence."""


@attrs.define
class Trust:
    """The least-squares factor from answers to what the curves lacked, between 0 and 1.

    An answer counts once its target is known, which the networks had not seen when they answered.
    """

    waiting: dict[int, float] = attrs.field(factory=dict)
    """Answers whose targets are not known yet, by update."""
    products: float = 0.0
    squares: float = 0.0

    @property
    def share(self) -> float:
        """The factor; 0 before there is evidence."""
        return min(1.0, max(0.0, self.products / (self.squares + DOUBT)))

    def settle(self, update: int, residual: float) -> None:
        """Take the target of the answer given at `update`, and forget older answers."""
        answer = self.waiting[update]
        self.waiting = {at: each for at, each in self.waiting.items() if at > update}
        self.products = FADING * self.products + answer * residual
        self.squares = FADING * self.squares + answer * answer
