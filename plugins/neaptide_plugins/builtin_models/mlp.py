"""A classifier of flattened examples: a plain multi-layer perceptron."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from .losses import summed_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import MlpOptions


class MlpLayer(nn.Module):
    """A linear layer, GELU and dropout. Maps `[B, inputs]` to `[B, width]`."""

    def __init__(self, inputs: int, width: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Transform one batch of features."""
        hidden: Tensor = self.dropout(nn.functional.gelu(self.linear(x)))
        return hidden


class Mlp(nn.Module):
    """A classifier that maps float `[B, ...]`, `inputs` values per example, to `[B, outputs]`."""

    def __init__(self, options: MlpOptions) -> None:
        super().__init__()
        self.inputs = options.inputs
        widths = [options.inputs] + [options.width] * (options.layers - 1)
        self.blocks = nn.ModuleList(
            MlpLayer(width, options.width, options.dropout) for width in widths
        )
        self.head = nn.Linear(options.width, options.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; ValueError if an example does not have `inputs` values."""
        flat = x.flatten(1)
        if flat.shape[1] != self.inputs:
            msg = (
                f"mlp takes {self.inputs} features an example, got {flat.shape[1]} "
                f"(batch of shape {list(x.shape)}): set the model's 'inputs' to match the data"
            )
            raise ValueError(msg)
        for block in self.blocks:
            flat = block(flat)
        logits: Tensor = self.head(flat)
        return logits


def build(options: MlpOptions) -> Mlp:
    """Return a new model; its weights are drawn from torch's global generator.

    The standard deviation of the weights is sqrt(2/fan_in) in hidden layers (He et al. 2015) and
    1/sqrt(fan_in) in the head. `init_scale` multiplies both. Biases are 0.
    """
    model = Mlp(options)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.kaiming_normal_(
                module.weight, nonlinearity="linear" if module is model.head else "relu"
            )
            module.weight.data.mul_(options.init_scale)
            nn.init.zeros_(module.bias)
    return model


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """Return the summed cross-entropy in nats and the number of examples.

    `batch["x"]` is float `[B, ...]`, and `batch["y"]` is int64 `[B]`.
    """
    return summed_cross_entropy(model(batch["x"]), batch["y"])
