"""Blocks and nets that are hard to run twice: rng state, changes in place, odd signatures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 8


def residual(x: torch.Tensor, branch: torch.Tensor) -> torch.Tensor:
    return x + 0.5 * branch


class Mlp(nn.Module):
    """Dropout draws random numbers, which the second time must be the same."""

    def __init__(self, shared: nn.Linear | None = None) -> None:
        super().__init__()
        self.linear = shared or nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return residual(x, self.drop(functional.gelu(self.linear(x))))


class Normed(nn.Module):
    """Batch norm changes its statistics in each forward, which must happen once."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return residual(x, self.norm(self.linear(x)).tanh())


class InPlace(nn.Module):
    """Overwrites its input, which therefore cannot be looked at again."""

    def __init__(self) -> None:
        super().__init__()
        self.relu = nn.ReLU(inplace=True)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return residual(x, self.norm(self.linear(self.relu(x))))


class Nested(nn.Module):
    """Checkpoints a part of itself by torch's own means."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return residual(x, checkpoint(self.inner, x, use_reentrant=False))


class Noisy(nn.Module):
    """Draws numbers itself, and as many as the weather has it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.rand(()) < 0.5:
            x = x + 0.1 * torch.randn_like(x)
        return residual(x, torch.randn(WIDTH, device=x.device) * self.linear(x))


class Lowered(nn.Module):
    """Computes in bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            return residual(x, self.linear(x).sigmoid())


class Partial(nn.Module):
    """Detaches half of its output, and uses that half no more than the head does."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        half = WIDTH // 2
        y = self.linear(x)
        return torch.cat([y[:, :half].detach(), y[:, half:].exp().clamp(max=2.0)], dim=1)


class Stack(nn.Module):
    """Calls its blocks one after the other between two linear layers."""

    def __init__(self, blocks: list[nn.Module]) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def tied() -> Stack:
    shared = nn.Linear(WIDTH, WIDTH)
    return Stack([Mlp(shared) for _ in range(4)])


class Twice(Stack):
    """Calls each block twice in a row, and then all of them again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in (*self.blocks, *self.blocks):
            x = block(block(x))
        return self.head(x).square().mean()


class LayerDrop(Stack):
    """Leaves blocks out by chance."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            if torch.rand(()) < 0.6:
                x = block(x)
        return self.head(x).square().mean()


class Reused(Stack):
    """Looks again at what came out in the middle, and changes a stream between the blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        outputs = []
        for block in self.blocks:
            x = block(x)
            outputs.append(x)
            x = x.clone().mul_(0.9)
        return self.head(sum(outputs) + outputs[1] * outputs[2]).square().mean()


class ScaledBetween(Stack):
    """Changes what a block returned in place before the next one sees it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x).mul_(0.9)
        return self.head(x).square().mean()


class Aliased(InPlace):
    """Is passed one tensor twice, and changes it through one of its names."""

    def forward(self, x: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
        y = super().forward(x)
        return y if skip is None else y + skip


class PassedTwice(Stack):
    """Passes a block the same tensor twice."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x, x)
        return self.head(x).square().mean()


class Cells(nn.Module):
    """Recurrent cells, each with a state that it hands on to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x.new_zeros(len(x), WIDTH) for _ in self.cells]
        for _ in range(4):
            for index, cell in enumerate(self.cells):
                x = states[index] = cell(x, states[index])
        return x.square().mean()


class ManyOutputs(nn.Module):
    """Takes keywords, and returns a tuple of a tensor, a dict and None."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(
        self, x: torch.Tensor, *, bias: dict[str, Any], scale: float = 1.0, mask: Any = None
    ) -> tuple[torch.Tensor, dict[str, Any], None]:
        y = self.linear(x) * scale + bias["now"]
        if mask is not None:
            y = y.masked_fill(mask, 0.0)
        return y.tanh(), {"now": y.sigmoid(), "sizes": [y.shape, 3]}, None


class Keywords(nn.Module):
    """Passes what a block returns on to the next in keywords and containers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(ManyOutputs() for _ in range(5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        bias: dict[str, Any] = {"now": x.mean()}
        for index, block in enumerate(self.blocks):
            mask = x < 0 if index % 2 else None
            x, bias, nothing = block(x, bias=bias, scale=1.0 + index, mask=mask)
            assert nothing is None
        return (x + bias["now"]).square().mean()


class Embedded(nn.Module):
    """Frozen at the bottom: no input of the first block needs a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.stack = nn.Sequential(*(Mlp() for _ in range(4)))
        self.stack[1].requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.stack(self.embedding(x[:, 0].abs().long() % WIDTH)).square().mean()


class Convolutions(nn.Module):
    """Residual convolutions with batch norm and activations in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3, padding=1)
        self.blocks = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
                )
                for _ in range(5)
            )
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.first(x.reshape(-1, 1, 4, 2))).square().mean()


NETS: dict[str, Callable[[], nn.Module]] = {
    "dropout": lambda: Stack([Mlp() for _ in range(5)]),
    "batch norm": lambda: Stack([Normed() for _ in range(5)]),
    "in place": lambda: Stack([InPlace() for _ in range(5)]),
    "noise": lambda: Stack([Noisy() for _ in range(5)]),
    "bfloat16 inside": lambda: Stack([Lowered() for _ in range(5)]),
    "nested": lambda: Stack([Nested() for _ in range(5)]),
    "partly detached": lambda: Stack([Partial() for _ in range(5)]),
    "tied": tied,
    "called twice": lambda: Twice([Normed() for _ in range(3)]),
    "called twice in place": lambda: Twice([InPlace() for _ in range(3)]),
    "layer drop": lambda: LayerDrop([Normed() for _ in range(6)]),
    "reused": lambda: Reused([Mlp() for _ in range(4)]),
    "changed between": lambda: ScaledBetween([Mlp() for _ in range(4)]),
    "aliased": lambda: PassedTwice([Aliased() for _ in range(4)]),
    "recurrent": Cells,
    "keywords": Keywords,
    "frozen": Embedded,
    "convolutions": Convolutions,
}


class Parameterless(nn.Module):
    """Has nothing to train."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


class Frozen(nn.Module):
    """Has weights, of which none is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).square().mean()


class Lazy(nn.Module):
    """Learns its shapes from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.LazyLinear(WIDTH)
        self.head = nn.LazyLinear(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.linear(x).tanh()).square().mean()


class Complex(nn.Module):
    """Computes in the complex plane, at the width of the type given."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=dtype) / WIDTH)
        self.phase = nn.Parameter(torch.randn(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x * torch.exp(1j * self.phase)
        return (turned.to(self.weight.dtype) @ self.weight).abs().square().mean().float()


class Empty(nn.Module):
    """Some of its tensors have no element."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.nothing = nn.Parameter(torch.zeros(0, WIDTH))
        self.narrow = nn.Linear(WIDTH, 1)
        self.narrow.weight = nn.Parameter(torch.zeros(0, WIDTH))
        self.narrow.bias = nn.Parameter(torch.zeros(0))
        self.register_buffer("none", torch.zeros(3, 0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return y.square().mean() + self.narrow(y).sum() + (x @ self.nothing.T).sum()


class Scalars(nn.Module):
    """Its parameters have no dimension, or one that is not contiguous."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.turned = nn.Parameter(torch.randn(4, WIDTH).T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.scale * (x @ self.turned)).square().mean()


class Branching(nn.Module):
    """Trains one half or the other, as the batch has it: half the gradients are missing."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.left if x.sum() > 0 else self.right)(x).square().mean()


class Shared(nn.Module):
    """One module under two names, and one parameter under a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.again = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.again(self.first(x).tanh()).tanh()).square().mean()


class Halves(nn.Module):
    """Has weights of three widths."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Linear(WIDTH, WIDTH).bfloat16()
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.high = nn.Linear(WIDTH, 1).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.low(x.bfloat16()).tanh().float()
        return self.high(self.middle(x).double()).square().mean().float()


class Growing(nn.Module):
    """Replaces a buffer by another object in each forward, and counts in Python and in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("hidden", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
            self.seen += 1
            self.hidden = self.hidden + self.seen
        return self.linear(x - self.mean + 0.001 * self.hidden).square().mean()


TRAINABLE: dict[str, Callable[[], nn.Module]] = {
    **NETS,
    "complex": lambda: Complex(torch.complex64),
    "without elements": Empty,
    "scalars": Scalars,
    "branching": Branching,
    "shared": Shared,
    "three widths": Halves,
    "growing": Growing,
}
UNTRAINABLE: dict[str, Callable[[], nn.Module]] = {
    "no parameters": Parameterless,
    "all frozen": Frozen,
    "lazy": Lazy,
}
