"""LinUCB with a linear model for each arm: Li, Chu, Langford and Schapire 2010, algorithm 1.

"A Contextual-Bandit Approach to Personalized News Article Recommendation", arXiv:1003.0146. An arm
is a choice; here, a length.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch


@attrs.define(eq=False)
class LinUcb:
    """Chooses an arm by context, and learns from the arm's reward. In float64 on the host.

    For each arm a, `A_a = ridge * I + sum x x^T` and `b_a = sum r x` over its contexts x and
    rewards r. With `theta_a = A_a^-1 b_a` the arm with the largest
    `theta_a . x + exploration * sqrt(x . A_a^-1 x)` is chosen (equation 5). The paper's ridge is 1.
    Nothing is random: of equal arms the first is chosen.
    """

    arms: int
    size: int
    """Elements of a context."""
    exploration: float
    ridge: float
    products: torch.Tensor = attrs.field(init=False)
    """`A`: `[arms, size, size]`."""
    sums: torch.Tensor = attrs.field(init=False)
    """`b`: `[arms, size]`."""

    def __attrs_post_init__(self) -> None:
        one = self.ridge * torch.eye(self.size, dtype=torch.float64, device="cpu")
        self.products = one.repeat(self.arms, 1, 1)
        self.sums = one.new_zeros(self.arms, self.size)

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        return self.products.nbytes + self.sums.nbytes

    def scores(self, context: torch.Tensor) -> list[float]:
        """Return the upper confidence bound of each arm's reward; `context` is float64 `[size]`."""
        known = torch.stack([self.sums, context.expand_as(self.sums)], dim=2)
        theta, spread = torch.linalg.solve(self.products, known).unbind(dim=2)
        bound = theta @ context + self.exploration * (spread @ context).clamp(min=0.0).sqrt()
        return [float(score) for score in bound]

    def choose(self, context: torch.Tensor) -> int:
        """Return the arm with the largest upper confidence bound."""
        scores = self.scores(context)
        return max(range(self.arms), key=scores.__getitem__)

    def learn(self, arm: int, context: torch.Tensor, reward: float) -> None:
        """Add a reward of `arm` in `context`."""
        self.products[arm].addr_(context, context)
        self.sums[arm].add_(context, alpha=reward)

    def state_dict(self) -> dict[str, Any]:
        """Return copies of both tensors."""
        return {"products": self.products.clone(), "sums": self.sums.clone()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.products, self.sums = state["products"].clone(), state["sums"].clone()
