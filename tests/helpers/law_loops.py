"""One loop, written twice: in plain PyTorch, and with a trainer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from typing import Any

import attrs
import torch
from support import DEVICE, ROUNDS_OTHERWISE
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer

STEPS = 5
WIDTH = 8

LossFn = Callable[[nn.Module, Any], torch.Tensor]


class Block(nn.Module):
    """A residual block with dropout, and a buffer that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))
        self.counts = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and self.counts:
            self.calls += 1
        found: torch.Tensor = x + self.dropout(functional.gelu(self.linear(self.norm(x))))
        return found


class Net(nn.Module):
    """Blocks between a stem and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(x)
        return found


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    """Return the cross-entropy of a batch."""
    return functional.cross_entropy(model(batch["x"]), batch["y"])


def batch(seed: int) -> dict[str, torch.Tensor]:
    """Return a batch of eight samples."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, WIDTH, generator=generator)
    return {"x": x.to(DEVICE), "y": torch.randint(0, 3, (8,), generator=generator).to(DEVICE)}


@attrs.define(eq=False)
class Loop:
    """What a habit may use: the user's own objects, as they are between two steps."""

    model: Any
    optimizer: Any
    loss_fn: LossFn
    step: int = 0
    kept: dict[str, Any] = attrs.field(factory=dict)
    """What a habit keeps from one step for a later one."""
    undo: ExitStack = attrs.field(factory=ExitStack)
    """Is closed when the loop ends, for what outlives the loop's objects."""

    def loss(self, seed: int = 90) -> torch.Tensor:
        """Return the loss of another batch, computed by hand."""
        return self.loss_fn(self.model, batch(seed))

    @property
    def weight(self) -> nn.Parameter:
        """The weight of a block in the middle."""
        found: nn.Parameter = self.model.blocks[1].linear.weight
        return found

    @property
    def blocks_weights(self) -> list[nn.Parameter]:
        """The weights of every block."""
        return [block.linear.weight for block in self.model.blocks]


@attrs.frozen(eq=False)
class Habit:
    """Something that people do."""

    name: str
    before: Callable[[Loop], None] | None = None
    """Called before each step."""
    loss_fn: LossFn = loss_of
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer] = attrs.field(
        default=lambda parameters: (  # on a GPU one that a CPU computes to the bit, too
            torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
            if ROUNDS_OTHERWISE
            else torch.optim.AdamW(parameters, lr=0.05)
        )
    )
    trains: Callable[[str], bool] = lambda _: True
    """Whether the optimizer is given the parameter of a name."""
    prepare: Callable[[Any], Any] = lambda model: model
    """Changes the model, or wraps it, before the trainer is made."""


def start(habit: Habit) -> Loop:
    """Return a new model and its optimizer."""
    torch.manual_seed(0)
    model = habit.prepare(Net().to(DEVICE))
    parameters = [one for name, one in model.named_parameters() if habit.trains(name)]
    return Loop(model, habit.optimizer(parameters), habit.loss_fn)


@attrs.frozen(eq=False)
class Trace:
    """What a run gives."""

    losses: list[float]
    weights: dict[str, torch.Tensor]
    evaluation: float


def traced(loop: Loop, losses: list[float], evaluation: float) -> Trace:
    """Return the trace with copies of the weights."""
    weights = {
        name.replace("_orig_mod.", ""): value.detach().cpu().clone()
        for name, value in loop.model.state_dict().items()
    }
    return Trace(losses, weights, evaluation)


def evaluated(loop: Loop) -> float:
    """Return the loss in eval mode, and leave no trace."""
    state, buffers = torch.get_rng_state(), copy.deepcopy(dict(loop.model.named_buffers()))
    loop.model.eval()
    loss = float(loop.loss(91).detach())
    loop.model.train()
    for name, value in loop.model.named_buffers():
        value.copy_(buffers[name])
    torch.set_rng_state(state)
    return loss


@cache
def plain(habit: Habit) -> Trace:
    """Run the loop as PyTorch's tutorials write it."""
    loop = start(habit)
    losses = []
    with loop.undo:
        for loop.step in range(STEPS):
            if habit.before is not None:
                habit.before(loop)
            loss = habit.loss_fn(loop.model, batch(loop.step))
            loss.backward()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            losses.append(float(loss.detach()))
    return traced(loop, losses, evaluated(loop))


def trained(habit: Habit, plugins: dict[str, Any], directory: Any) -> Trace:
    """Run the same loop with a trainer."""
    loop = start(habit)
    config = {"plugins": plugins, "run": {"dir": str(directory)} if "profiler" in plugins else {}}
    config["train"] = {"max_skipped": 0}
    trainer = HybridTrainer(loop.model, loop.optimizer, loss_fn=habit.loss_fn, config=config)
    with trainer, loop.undo:
        losses = []
        for loop.step in range(STEPS):
            if habit.before is not None:
                habit.before(loop)
            losses.append(trainer.step(batch(loop.step)).loss)
        evaluation = trainer.evaluate([batch(91)])
    return traced(loop, losses, evaluation)
