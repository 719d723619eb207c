"""Architectures whose blocks are connected otherwise than in a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from zoo_layers import WIDTH, Stack

if TYPE_CHECKING:
    from collections.abc import Callable


def batch_of_images(x: torch.Tensor) -> torch.Tensor:
    """`[6, 5, 8]` as `[6, 8, 5, 1]`."""
    return x.transpose(1, 2).unsqueeze(-1)


class Images(nn.Module):
    """Blocks of convolutions; returns a loss."""

    pattern = "blocks.*"

    def __init__(self, blocks: list[nn.Module], width: int = WIDTH) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(width, 3)

    def through(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.through(batch_of_images(x)).mean((2, 3))).square().mean()


def conv(into: int, out: int, kernel: int = 3) -> nn.Module:
    size = (kernel, 1)
    return nn.Sequential(
        nn.Conv2d(into, out, size, padding=(kernel // 2, 0), bias=False),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


class ResidualBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = conv(WIDTH, WIDTH), nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(x + self.two(self.one(x)))


class Inception(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.arms = nn.ModuleList(conv(WIDTH, WIDTH // 4, kernel) for kernel in (1, 3, 5))
        self.pooled = conv(WIDTH, WIDTH // 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled = functional.max_pool2d(x, (3, 1), 1, (1, 0))
        return torch.cat([*(arm(x) for arm in self.arms), self.pooled(pooled)], 1)


class SqueezeExcite(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(WIDTH, WIDTH)
        self.gate = nn.Sequential(nn.Conv2d(WIDTH, 2, 1), nn.SiLU(), nn.Conv2d(2, WIDTH, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        return x + y * self.gate(y.mean((2, 3), keepdim=True)).sigmoid()


class Dense(nn.Module):
    """Adds channels to all those before."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = conv(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, self.conv(x)], 1)


class ConvNext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.depth = nn.Conv2d(WIDTH, WIDTH, (3, 1), padding=(1, 0), groups=WIDTH)
        self.norm, self.scale = nn.LayerNorm(WIDTH), nn.Parameter(torch.full((WIDTH,), 0.1))
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(functional.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class UNet(Images):
    """Goes down and up again, with what was seen on the way down passed across."""

    def __init__(self) -> None:
        down = [conv(WIDTH, WIDTH) for _ in range(3)]
        super().__init__([*down, *(conv(2 * WIDTH, WIDTH) for _ in range(3))])

    def through(self, x: torch.Tensor) -> torch.Tensor:
        seen = []
        for block in self.blocks[:3]:
            x = block(x)
            seen.append(x)
            x = functional.avg_pool2d(x, (2, 1), ceil_mode=True)
        for block, across in zip(self.blocks[3:], reversed(seen), strict=True):
            x = functional.interpolate(x, across.shape[2:])
            x = block(torch.cat([x, across], 1))
        return x


class Twice(Stack):
    """Uses one block three times, and another one with it tied to it."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(WIDTH, WIDTH), 4)
        self.blocks[3].weight = self.blocks[1].weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for index in (0, 1, 0, 2, 3, 0):
            x = self.blocks[index](x).tanh()
        return self.head(x).square().mean()


class TiedOutside(Stack):
    """Ties a block's weight with a layer outside."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Linear(WIDTH, WIDTH), 4)
        self.blocks[2].weight = self.first.weight


class Nested(Stack):
    """Has containers in containers."""

    pattern = "blocks.*"

    def __init__(self) -> None:
        super().__init__(
            lambda: nn.Sequential(
                nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            ),
            3,
        )


NETS: dict[str, Callable[[], nn.Module]] = {
    "residual": lambda: Images([ResidualBlock() for _ in range(3)]),
    "inception": lambda: Images([Inception() for _ in range(3)]),
    "squeeze and excite": lambda: Images([SqueezeExcite() for _ in range(3)]),
    "dense": lambda: Images([Dense(WIDTH + 4 * i) for i in range(3)], WIDTH + 12),
    "convnext": lambda: Images([ConvNext() for _ in range(3)]),
    "u-net": UNet,
    "used thrice": Twice,
    "tied outside": TiedOutside,
    "nested": Nested,
}
