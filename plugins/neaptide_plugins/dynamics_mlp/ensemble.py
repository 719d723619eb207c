"""An ensemble of networks with one hidden layer, trained by AdamW."""

from __future__ import annotations

import math

import attrs
import torch

from neaptide_kernels.counter_random import uniform
from neaptide_toolkit.forecasting.networks import AdamW


@attrs.define(eq=False)
class MlpEnsemble:
    """Maps standardised inputs to one number per member, in float32 on the host.

    The last layer begins with zeros, so an untrained ensemble answers 0. Random numbers depend on
    the seed only.
    """

    members: int
    inputs: int
    hidden: int
    seed: int
    weights: list[torch.Tensor] = attrs.field(init=False)
    """First layer `[members, inputs, hidden]` and `[members, 1, hidden]`; last layer
    `[members, hidden, 1]` and `[members, 1, 1]`."""
    optimizer: AdamW = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        first = (self.members, self.inputs, self.hidden)
        drawn = uniform(self.seed, torch.arange(math.prod(first), device="cpu")).reshape(first)
        reach = 3.0**0.5 * self.inputs**-0.5
        weight = (2.0 * drawn - 1.0) * reach
        self.weights = [
            weight,
            weight.new_zeros(self.members, 1, self.hidden),
            weight.new_zeros(self.members, self.hidden, 1),
            weight.new_zeros(self.members, 1, 1),
        ]
        self.optimizer = AdamW(self.weights)

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return `[members, rows]` for inputs `[rows, inputs]` or `[members, rows, inputs]`."""
        first, offset, last, constant = self.weights
        return ((inputs @ first + offset).tanh() @ last + constant).squeeze(-1)

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
