"""A small convolutional classifier of 8x8 digits. Its batch normalization has buffers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from .losses import summed_cross_entropy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .config import DigitsCnnOptions

IMAGE_SHAPE = (1, 8, 8)


class ConvBlock(nn.Module):
    """A 3x3 convolution, a batch normalization if `norm` is true, and a ReLU.

    Maps `[B, inputs, H, W]` to `[B, outputs, H, W]`.
    """

    def __init__(self, inputs: int, outputs: int, *, norm: bool) -> None:
        super().__init__()
        # A bias would have no effect, because the normalization subtracts the mean.
        self.conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=not norm)
        self.norm = nn.BatchNorm2d(outputs) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Transform one batch of feature maps."""
        return nn.functional.relu(self.norm(self.conv(x)))


class DigitsCnn(nn.Module):
    """A classifier that maps images, float `[B, 1, 8, 8]`, to logits `[B, classes]`."""

    def __init__(self, options: DigitsCnnOptions) -> None:
        super().__init__()
        wide = 2 * options.channels
        self.blocks = nn.Sequential(
            ConvBlock(IMAGE_SHAPE[0], options.channels, norm=options.norm),
            ConvBlock(options.channels, wide, norm=options.norm),
            nn.MaxPool2d(2),
            ConvBlock(wide, wide, norm=options.norm),
        )
        self.head = nn.Linear(wide, options.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits; ValueError unless `x` is `[B, 1, 8, 8]`."""
        if x.shape[1:] != IMAGE_SHAPE:
            msg = f"digits-cnn takes images of shape [batch, 1, 8, 8], got {list(x.shape)}"
            raise ValueError(msg)
        logits: Tensor = self.head(self.blocks(x).mean(dim=(2, 3)))
        return logits


def build(options: DigitsCnnOptions) -> DigitsCnn:
    """Return a new model; its weights are drawn from torch's global generator.

    The standard deviation of the weights is sqrt(2/fan_in) in convolutions (He et al. 2015) and
    1/sqrt(fan_in) in the head. `init_scale` multiplies both. Biases are 0. Batch normalization has
    scale 1 and shift 0.
    """
    model = DigitsCnn(options)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(
                module.weight, nonlinearity="linear" if module is model.head else "relu"
            )
            module.weight.data.mul_(options.init_scale)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return model


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, int]:
    """Return the summed cross-entropy in nats and the number of images.

    `batch["x"]` is float32 `[B, 1, 8, 8]`, and `batch["y"]` is int64 `[B]`.
    """
    return summed_cross_entropy(model(batch["x"]), batch["y"])
