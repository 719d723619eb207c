"""An ensemble of networks with one hidden layer, trained by AdamW (Loshchilov and Hutter, 2019).

Each member has its own weights and draws its own samples, so members agree where there was much to
learn from and disagree elsewhere (Lakshminarayanan et al., "Simple and Scalable Predictive
Uncertainty Estimation using Deep Ensembles", 2017).
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

from neaptide_kernels.counter_random import uniform

BETAS = (0.9, 0.99)
EPSILON = 1e-8
STEP = 1 << 32
"""Distance between the random positions of two gradient steps."""


@attrs.define(eq=False)
class MlpEnsemble:
    """Maps standardised inputs to one number per member, in float32 on the host.

    The last layer begins with zeros, so an untrained ensemble answers 0. Random numbers depend on
    the seed and on the number of gradient steps only.
    """

    members: int
    inputs: int
    hidden: int
    seed: int
    steps: int = 0
    """Number of gradient steps so far."""
    weights: list[torch.Tensor] = attrs.field(init=False)
    """First layer `[members, inputs, hidden]` and `[members, 1, hidden]`; last layer
    `[members, hidden, 1]` and `[members, 1, 1]`."""
    means: list[torch.Tensor] = attrs.field(init=False)
    squares: list[torch.Tensor] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        first = (self.members, self.inputs, self.hidden)
        drawn = uniform(self.seed, torch.arange(_size(first), device="cpu")).reshape(first)
        reach = 3.0**0.5 * self.inputs**-0.5
        weight = (2.0 * drawn - 1.0) * reach
        self.weights = [
            weight,
            weight.new_zeros(self.members, 1, self.hidden),
            weight.new_zeros(self.members, self.hidden, 1),
            weight.new_zeros(self.members, 1, 1),
        ]
        self.means = [torch.zeros_like(each) for each in self.weights]
        self.squares = [torch.zeros_like(each) for each in self.weights]

    @property
    def bytes(self) -> int:
        """Bytes of weights and of the optimizer's state."""
        return sum(each.nbytes for each in (*self.weights, *self.means, *self.squares))

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `[members, rows]` for inputs `[rows, inputs]` or `[members, rows, inputs]`."""
        first, offset, last, constant = self.weights
        return ((inputs @ first + offset).tanh() @ last + constant).squeeze(-1)

    def drawn(self, rows: int, batch: int) -> torch.Tensor:
        """Return the rows that each member draws in its next step, int64 `[members, batch]`."""
        places = torch.arange(self.members * batch, device="cpu") + (self.steps + 1) * STEP
        share = uniform(self.seed, places).reshape(self.members, batch)
        return (share * rows).long().clamp_(max=rows - 1)

    def gradients(self, inputs: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        """Return the gradients of each member's mean squared error / 2, in the order of `weights`.

        `inputs` is `[members, batch, inputs]`, `targets` `[members, batch]`.
        """
        first, offset, last, constant = self.weights
        hidden = (inputs @ first + offset).tanh()
        off = hidden @ last + constant - targets[..., None]
        off /= targets.shape[-1]
        back = off @ last.mT * (1.0 - hidden * hidden)
        return [
            inputs.mT @ back,
            back.sum(1, keepdim=True),
            hidden.mT @ off,
            off.sum(1, keepdim=True),
        ]

    def step(self, inputs: torch.Tensor, targets: torch.Tensor, lr: float, shrink: float) -> None:
        """Take one step of AdamW on a batch, which is as in `gradients`."""
        self.steps += 1
        of_mean, of_squares = (1.0 - beta**self.steps for beta in BETAS)
        found = self.gradients(inputs, targets)
        for weight, mean, squares, gradient in zip(
            self.weights, self.means, self.squares, found, strict=True
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


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size
