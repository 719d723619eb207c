"""What forecasters with an ensemble of networks share: AdamW, drawn samples, standard inputs.

Each member of an ensemble has its own weights and draws its own samples, so members agree where
there was much to learn from and disagree elsewhere (Lakshminarayanan et al., "Simple and Scalable
Predictive Uncertainty Estimation using Deep Ensembles", 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide_kernels.counter_random import uniform

if TYPE_CHECKING:
    from collections.abc import Sequence

BETAS = (0.9, 0.99)
EPSILON = 1e-8
STEP = 1 << 32
"""Distance between the random positions of two gradient steps."""
FLAT = 1e-3
"""An input counts as constant if its standard deviation is at most this."""
OUTLYING = 4.0
"""Largest distance of an input from its mean, in standard deviations; inputs are clipped to it."""


@attrs.define(eq=False)
class AdamW:
    """AdamW (Loshchilov and Hutter, 2019) for float32 weights on the host."""

    weights: Sequence[torch.Tensor]
    steps: int = 0
    """Number of gradient steps so far."""
    means: list[torch.Tensor] = attrs.field(init=False)
    squares: list[torch.Tensor] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.means = [torch.zeros_like(each) for each in self.weights]
        self.squares = [torch.zeros_like(each) for each in self.weights]

    @property
    def bytes(self) -> int:
        """Bytes of weights and of the optimizer's state."""
        return sum(each.nbytes for each in (*self.weights, *self.means, *self.squares))

    def step(self, gradients: Sequence[torch.Tensor], lr: float, shrink: float) -> None:
        """Take one step; the gradients are in the order of the weights."""
        self.steps += 1
        of_mean, of_squares = (1.0 - beta**self.steps for beta in BETAS)
        for weight, mean, squares, gradient in zip(
            self.weights, self.means, self.squares, gradients, strict=True
        ):
            mean.lerp_(gradient, 1.0 - BETAS[0])
            squares.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1.0 - BETAS[1])
            weight.mul_(1.0 - lr * shrink)
            weight.addcdiv_(mean, (squares / of_squares).sqrt_().add_(EPSILON), value=-lr / of_mean)

    def state_dict(self) -> dict[str, Any]:
        """Return weights and the optimizer's state."""
        return {
            "steps": self.steps,
            **{
                name: [each.clone() for each in getattr(self, name)]
                for name in ("weights", "means", "squares")
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        self.steps = state["steps"]
        for name in ("weights", "means", "squares"):
            for each, saved in zip(getattr(self, name), state[name], strict=True):
                each.copy_(saved)


def drawn(seed: int, steps: int, members: int, rows: int, batch: int) -> torch.Tensor:
    """Return the rows that each member draws after `steps` steps, int64 `[members, batch]`.

    Random numbers depend on the seed and on the number of gradient steps only.
    """
    places = torch.arange(members * batch, device="cpu") + (steps + 1) * STEP
    share = uniform(seed, places).reshape(members, batch)
    return (share * rows).long().clamp_(max=rows - 1)


def moments(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return what is subtracted from rows, and the factors of centred rows: one per input."""
    deviation, centre = torch.std_mean(rows, 0, correction=0)
    return centre, torch.where(deviation > FLAT, 1.0 / deviation, 0.0)


def standard(rows: torch.Tensor, centre: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return standardised rows."""
    return ((rows - centre) * scale).clamp_(-OUTLYING, OUTLYING)
