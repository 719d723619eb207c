"""Defines two of the three tasks of predict.py: noisy digits and the colours of a photograph.

The third task is the built-in byte GPT on the standard library's sources.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import torch
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

from neaptide import Data, Task
from neaptide.api.steps import Loss
from neaptide_plugins.builtin_data import digits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Batch = Mapping[str, Tensor]

SPLIT_SEED = 0
NOISY_DRAWS = 3  # number of noisy copies of each validation image
FEATURES, BANDWIDTH = 64, 6.0
LOSS_SCALE = 100.0  # squared errors of pixels are small


@attrs.define(eq=False)
class Drawn:
    """Endless batches. Batch i depends only on (seed, i), so that a run can resume."""

    draw: Callable[[torch.Generator], Batch]
    seed: int
    index: int = 0

    def __iter__(self) -> Iterator[Batch]:
        while True:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.index)
            self.index += 1
            yield self.draw(generator)

    def state_dict(self) -> dict[str, int]:
        """Return the number of the next batch."""
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continue with the batch whose number is stored in `state`."""
        self.index = state["index"]


def noisy_digits(batch_size: int, seed: int, noise: float = 0.5) -> Data:
    """Return batches of scikit-learn's digits, shifted by up to a pixel and with added noise.

    For validation, 40 % of the images are held out. The training images are few: without noise, a
    model memorizes them within seconds. With new noise in every batch, longer training gives a
    lower validation loss.
    """
    train, held_out = digits.load(0.4)

    def draw(generator: torch.Generator) -> Batch:
        chosen = torch.randint(0, len(train.labels), (batch_size,), generator=generator)
        return {
            "x": _spoiled(train.images[chosen], noise, generator),
            "y": train.labels[chosen],
        }

    fixed = torch.Generator().manual_seed(SPLIT_SEED)
    validation = [
        {"x": _spoiled(held_out.images, noise, fixed), "y": held_out.labels}
        for _ in range(NOISY_DRAWS)
    ]
    return Data(Drawn(draw, seed), validation)


def _spoiled(images: Tensor, noise: float, generator: torch.Generator) -> Tensor:
    """Shift each image `[N, 1, 8, 8]` by -1 to 1 pixels in both directions and add noise."""
    size = images.shape[-1]
    padded = nn.functional.pad(images, (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, len(images), 1, 1), generator=generator)
    place = torch.arange(size)
    rows, columns = down + place.view(1, -1, 1), right + place.view(1, 1, -1)
    number = torch.arange(len(images)).view(-1, 1, 1)
    shifted = padded[number, 0, rows, columns].unsqueeze(1)
    return shifted + noise * torch.randn(shifted.shape, generator=generator)


def photo(batch_size: int, seed: int, held_out: int = 8192) -> Data:
    """Return batches of random pixels of scikit-learn's china.jpg: positions and colours.

    `held_out` pixels are used for validation. Positions are given as random Fourier features
    (Tancik et al. 2020), float32 `[B, 128]`. Colours are float32 `[B, 3]` from 0 to 1.
    """
    picture = torch.tensor(load_sample_image("china.jpg").copy()).float() / 255
    height, width, _ = picture.shape
    y, x = torch.meshgrid(
        torch.linspace(-1, 1, height), torch.linspace(-1, 1, width), indexing="ij"
    )
    fixed = torch.Generator().manual_seed(SPLIT_SEED)
    order = torch.randperm(height * width, generator=fixed)
    waves = torch.stack([x, y], -1).reshape(-1, 2) @ (
        BANDWIDTH * torch.randn(2, FEATURES, generator=fixed)
    )
    places = torch.cat([waves.sin(), waves.cos()], -1)
    colours = picture.reshape(-1, 3)
    seen = order[held_out:]

    def draw(generator: torch.Generator) -> Batch:
        chosen = seen[torch.randint(0, len(seen), (batch_size,), generator=generator)]
        return {"x": places[chosen], "y": colours[chosen]}

    kept = order[:held_out]
    return Data(Drawn(draw, seed), [{"x": places[kept], "y": colours[kept]}])


def photo_model(width: int = 128, layers: int = 3, init_scale: float = 1.0) -> Task:
    """Return an MLP that maps Fourier features to a colour.

    Hidden layers have He initialisation, the head has weights of scale 1/sqrt(fan_in). Biases are
    zero.
    """
    sizes = [2 * FEATURES] + [width] * layers
    model = nn.Sequential()
    for number, (inputs, outputs) in enumerate(pairwise(sizes)):
        model.add_module(f"hidden{number}", _linear(inputs, outputs, init_scale * math.sqrt(2)))
        model.add_module(f"relu{number}", nn.ReLU())
    model.add_module("head", _linear(width, 3, init_scale))
    return Task(model, squared_error)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    nn.init.normal_(linear.weight, std=gain / math.sqrt(inputs))
    nn.init.zeros_(linear.bias)
    return linear


def squared_error(model: nn.Module, batch: Batch) -> Loss:
    """Return 100 times the summed squared error, and the number of colour values."""
    error = nn.functional.mse_loss(model(batch["x"]), batch["y"], reduction="sum")
    return Loss(LOSS_SCALE * error, batch["y"].numel())
