"""Loss, gradients, buffers and random state are to the bit those without checkpointing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checkpointed import attached, differing, trace
from hypothesis import given, settings
from hypothesis import strategies as st
from support import CYCLE, same_tensors, tensors_of, tiny_trainer
from torch import nn
from torch.utils.checkpoint import checkpoint

from neaptide.testing.tiny import STEADY_PREDICTOR
from neaptide_plugins.activation_checkpointing.arguments import ChangedInPlaceError
from neaptide_plugins.activation_checkpointing.segments import Segments

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
        return residual(x, self.drop(torch.nn.functional.gelu(self.linear(x))))


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
        return residual(x, torch.randn(WIDTH) * self.linear(x))


class Lowered(nn.Module):
    """Computes in bfloat16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
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


class Cells(nn.Module):
    """Recurrent cells, each with a state that it hands on to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.ModuleList(nn.GRUCell(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [torch.zeros(len(x), WIDTH) for _ in self.cells]
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
    "recurrent": Cells,
    "keywords": Keywords,
    "frozen": Embedded,
    "convolutions": Convolutions,
}


def loss_of(model: nn.Module, step: int, *, autocast: bool = False) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return model(torch.randn(6, WIDTH, generator=generator))


SETTINGS: dict[str, dict[str, Any]] = {
    "each block": {"interval": 1},
    "pairs": {"interval": 2},
    "all blocks": {"interval": 8},
    "half of them": {"interval": 1, "ratio": 0.5},
}
KEPT = {"matmuls kept": {"interval": 2, "save_ops": ("matmul", "aten.convolution")}}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", NETS)
def test_training_is_bitwise_the_same(name: str, *, autocast: bool) -> None:
    step = partial(loss_of, autocast=autocast)
    expected = trace(NETS[name], step)
    # torch's cells change the products in place where nobody can see it, which is refused below.
    chosen = SETTINGS if name == "recurrent" else SETTINGS | KEPT
    found = {
        setting: differing(expected, trace(NETS[name], step, segments=partial(attached, **given)))
        for setting, given in chosen.items()
    }
    assert dict.fromkeys(chosen, []) == found


def test_products_that_are_changed_unseen_are_not_kept() -> None:
    model = Cells()
    attached(model, save_ops=("matmul",))
    with pytest.raises(ChangedInPlaceError, match=r"unsafe_split.*; exclude the block") as caught:
        loss_of(model, 0)
    assert 1 == len(str(caught.value).splitlines())


class Rectified(Mlp):
    """Changes a product in place, where it can be seen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu_()


def test_a_product_that_is_changed_after_it_was_kept_is_named() -> None:
    model = Stack([Rectified() for _ in range(2)])
    attached(model, save_ops=("matmul",))
    with pytest.raises(ChangedInPlaceError) as caught:
        loss_of(model, 0).backward()
    expected = (
        "activation checkpointing of block 'blocks.0': an output of aten.addmm.default, one of "
        "save_ops, was changed in place; exclude the block"
    )
    assert expected == str(caught.value)


def test_a_mistake_would_be_seen() -> None:
    expected = trace(NETS["dropout"], loss_of)
    found = trace(NETS["dropout"], lambda model, step: loss_of(model, step) * (1 + 1e-6))
    assert "0 loss" in differing(expected, found)


KINDS = (Mlp, Normed, InPlace, Nested, Noisy, Lowered, Partial)


@settings(max_examples=40)
@given(
    kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=7),
    interval=st.integers(1, 8),
    ratio=st.floats(0.05, 1.0),
    save_ops=st.sampled_from([(), ("matmul",), ("matmul", "aten.native_dropout")]),
    autocast=st.booleans(),
)
def test_any_stack_of_awkward_blocks_is_bitwise_the_same(
    kinds: list[type[nn.Module]],
    interval: int,
    ratio: float,
    save_ops: tuple[str, ...],
    *,
    autocast: bool,
) -> None:
    def make() -> nn.Module:
        return Stack([kind() for kind in kinds])

    def patch(model: nn.Module) -> Segments:
        return attached(model, "blocks.*", interval=interval, ratio=ratio, save_ops=save_ops)

    step = partial(loss_of, autocast=autocast)
    expected = trace(make, step, steps=2)
    assert [] == differing(expected, trace(make, step, segments=patch, steps=2))


@pytest.mark.parametrize("interval", [1, 3, 8])
def test_a_run_through_all_phases_is_bitwise_the_same(interval: int) -> None:
    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        trainer, batches = tiny_trainer(
            {"phases": CYCLE, "plugins": plugins}, plugins=[STEADY_PREDICTOR]
        )
        with trainer:
            losses = [trainer.step(batch).loss for batch in batches[:14]]
        random = torch.get_rng_state()
        return {**tensors_of(trainer.model), "losses": torch.tensor(losses), "random": random}

    assert same_tensors(weights({}), weights({"activation-checkpointing": {"interval": interval}}))
