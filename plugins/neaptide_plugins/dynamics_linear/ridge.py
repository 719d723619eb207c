"""Ridge regression. One matrix stores the sums of the products of inputs and target.

Old samples have lower weights.
"""

from __future__ import annotations

from typing import Any

import attrs
import torch

FLAT = 1e-3
"""An input counts as constant if its standard deviation is at most this."""
OUTLYING = 4.0
"""Largest distance of an input from its mean, in standard deviations; inputs are clipped to it."""


@attrs.define(eq=False)
class Ridge:
    """Predicts the residual (the error) of another forecast, in float64 on the host.

    The first `plain` inputs are used unchanged; all other inputs are standardised. The
    constant and all coefficients have a penalty, so the prediction without samples is 0.
    """

    penalties: torch.Tensor
    """float64 `[1 + inputs]`; the first penalty belongs to the constant."""
    plain: int
    power: float
    """After n samples, sample number k has the weight (k / n) ** power."""
    samples: int = 0
    products: torch.Tensor = attrs.field(init=False)
    """Sums of products of constant, inputs and target: `[1 + inputs + 1, 1 + inputs + 1]`."""
    centre: torch.Tensor = attrs.field(init=False)
    """`[inputs]`, from the last fit: subtracted from the inputs."""
    scale: torch.Tensor = attrs.field(init=False)
    """`[inputs]`, from the last fit: factors of the centred inputs."""
    weights: torch.Tensor = attrs.field(init=False)
    """`[1 + inputs]`, from the last fit: the constant, then the coefficients of the inputs."""

    def __attrs_post_init__(self) -> None:
        size = len(self.penalties)
        self.products = self.penalties.new_zeros(size + 1, size + 1)
        self.centre = self.penalties.new_zeros(size - 1)
        self.scale = self.penalties.new_ones(size - 1)
        self.weights = self.penalties.new_zeros(size)

    @property
    def bytes(self) -> int:
        """Bytes of the tensors."""
        held = (self.penalties, self.products, self.centre, self.scale, self.weights)
        return sum(tensor.nbytes for tensor in held)

    def learn(self, inputs: torch.Tensor, target: float) -> None:
        """Add one sample: the inputs, float64 `[inputs]`, and the residual to be predicted."""
        fading = (self.samples / (self.samples + 1)) ** self.power if self.samples else 0.0
        self.samples += 1
        row = torch.cat([inputs.new_ones(1), inputs, inputs.new_tensor([target])])
        self.products.mul_(fading).addr_(row, row)

    def fit(self) -> None:
        """Compute the weights from the sums of products."""
        size = len(self.penalties)
        sums, targets = self.products[:size, :size], self.products[:size, size]
        mean = sums[0, 1:] / sums[0, 0]
        deviation = (sums.diagonal()[1:] / sums[0, 0] - mean * mean).clamp(min=0).sqrt()
        self.scale = torch.where(deviation > FLAT, 1 / deviation, 0.0)
        self.scale[: self.plain] = 1.0
        self.centre = mean
        self.centre[: self.plain] = 0.0
        standard = torch.diag(torch.cat([self.scale.new_ones(1), self.scale]))
        standard[0, 1:] = -self.centre * self.scale
        normal = standard.t() @ sums @ standard + torch.diag(self.penalties)
        self.weights = torch.linalg.solve(normal, standard.t() @ targets)

    def predict(self, inputs: torch.Tensor) -> float:
        """Return the prediction of the last fit; 0 before the first fit."""
        standard = (inputs - self.centre) * self.scale
        standard[self.plain :].clamp_(-OUTLYING, OUTLYING)
        return float(self.weights[0] + standard @ self.weights[1:])

    def state_dict(self) -> dict[str, Any]:
        """Return the sums of products and the results of the last fit."""
        return {
            "samples": self.samples,
            "products": self.products.clone(),
            "centre": self.centre.clone(),
            "scale": self.scale.clone(),
            "weights": self.weights.clone(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, value.clone() if isinstance(value, torch.Tensor) else value)
