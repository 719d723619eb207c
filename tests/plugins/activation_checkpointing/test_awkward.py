"""What a training loop may do in between: raise, evaluate, go backward twice or never."""

from __future__ import annotations

import sys
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checkpointed import attached, differing, trace
from support import DEVICE
from torch import nn

from neaptide_toolkit.recompute import ChangedInPlaceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide_plugins.activation_checkpointing.segments import Segments

WIDTH = 8


class Block(nn.Module):
    """Batch norm and dropout: state that a careless second run would change."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.norm(self.linear(x)).tanh())


class Net(nn.Module):
    """Linear, blocks, linear."""

    def __init__(self, make: Callable[[], nn.Module] = Block, depth: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(make() for _ in range(depth))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x).square().mean()


def batch(step: int) -> torch.Tensor:
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(step)).to(DEVICE)


@pytest.fixture(params=[{"interval": 1}, {"interval": 3}, {"interval": 8, "save_ops": ("matmul",)}])
def patch(request: pytest.FixtureRequest) -> Callable[[nn.Module], Segments]:
    return lambda model: attached(model, "blocks.*", **request.param)


def both(
    patch: Callable[[nn.Module], Segments], loss_of: Callable[[nn.Module, int], torch.Tensor]
) -> list[str]:
    """Return what differs with and without checkpointing, `loss_of` doing what it likes."""
    return differing(trace(Net, loss_of), trace(Net, loss_of, segments=patch))


def test_backward_may_run_twice(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        loss = model(batch(step))
        loss.backward(retain_graph=True)
        return loss

    assert [] == both(patch, loss_of)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_forwards_may_go_backward_in_either_order(patch: Any, order: tuple[int, int]) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        losses = [model(batch(step)), model(batch(step + 10))]
        losses[order[0]].backward()
        return losses[order[1]]

    assert [] == both(patch, loss_of)


def test_one_backward_may_go_through_two_forwards(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step)) * model(batch(step + 10))

    assert [] == both(patch, loss_of)


def test_evaluations_may_come_between_forward_and_backward(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        loss = model(batch(step))
        model.eval()
        with torch.no_grad():
            model(batch(step + 10))
        with torch.inference_mode():
            model(batch(step + 20))
        model.train()
        return loss

    assert [] == both(patch, loss_of)


def test_gradients_may_be_taken_of_inputs_and_by_autograd_grad(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        x = batch(step).requires_grad_()
        loss = model(x)
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        return loss + gradient.square().sum()

    assert [] == both(patch, loss_of)


def test_random_numbers_drawn_between_forward_and_backward_are_not_drawn_again(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step)) + torch.randn(())

    assert [] == both(patch, loss_of)


class Fails(Block):
    """Raises when it is told to."""

    failing = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.failing:
            raise ZeroDivisionError
        return super().forward(x)


def test_after_an_error_inside_a_block_the_next_step_is_as_ever(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        model.blocks[2].failing = True
        with pytest.raises(ZeroDivisionError):
            model(batch(step))
        model.blocks[2].failing = False
        return model(batch(step))

    def make() -> nn.Module:
        return Net(Fails)

    assert [] == differing(trace(make, loss_of), trace(make, loss_of, segments=patch))


class GivesUp(Block):
    """Raises once, after it has computed something."""

    given_up = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        if not self.given_up:
            self.given_up = True
            raise ZeroDivisionError
        return y


class Forgiving(Net):
    """Goes on with the next block where one raises."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            with suppress(ZeroDivisionError):
                x = block(x)
        return self.head(x).square().mean()


def test_a_model_may_go_on_after_an_error_inside_a_block(patch: Any) -> None:
    def make() -> nn.Module:
        model = Forgiving()
        model.blocks[1] = GivesUp()
        return model

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step))

    assert [] == differing(trace(make, loss_of), trace(make, loss_of, segments=patch))


class ChangesItsInputLater(nn.Module):
    """Changes the input of its blocks after they have used it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        x.mul_(2.0)
        return y.square().sum()


def test_an_input_changed_after_its_block_is_named() -> None:
    model = ChangesItsInputLater()
    attached(model)
    model(batch(0))  # from now on it is known that the blocks leave their inputs alone
    with pytest.raises(ChangedInPlaceError) as caught:
        model(batch(0)).backward()
    expected = (
        "activation checkpointing of block 'blocks.0': an input was changed in place between its "
        "forward and backward; exclude the block"
    )
    assert expected == str(caught.value)


class ChangesLate(nn.Module):
    """Begins to change its input once it has been seen not to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.linear(x if self.calls == 1 else x.relu_())


def test_a_block_that_begins_to_change_its_input_is_named() -> None:
    model = Net(ChangesLate)
    attached(model)
    model(batch(0))
    with pytest.raises(ChangedInPlaceError, match=r"'blocks\.0' changes an input in place that"):
        model(batch(0))


class Fickle(nn.Module):
    """Computes something else each time it is called, as another object tells it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.counter = count(1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.linear(x)] * next(self.counter), dim=1).tanh()[:, :WIDTH]


class Shrinking(Fickle):
    """Saves less the second time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).tanh() if next(self.counter) == 1 else x + 0.0


@pytest.mark.parametrize("kind", [Fickle, Shrinking])
@pytest.mark.parametrize("interval", [1, 4])
def test_a_block_that_computes_something_else_the_second_time_is_named(
    kind: type[nn.Module], interval: int
) -> None:
    model = Net(depth=4)
    model.blocks[3] = kind()
    attached(model, "blocks.*", interval=interval)
    with pytest.raises(RuntimeError) as caught:
        model(batch(0)).backward()
    expected = (
        "block 'blocks.3' saved different tensors when it was recomputed; exclude it from "
        "activation checkpointing"
    )
    assert expected == str(caught.value)


class LargeBuffer(nn.Module):
    """Keeps a large buffer, which it begins to change in its second call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("memory", torch.zeros(70_000))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls > 1:
            self.memory.add_(1.0)
        return self.linear(x)


def test_a_large_buffer_that_begins_to_change_is_named() -> None:
    model = Net(LargeBuffer)
    attached(model)
    model(batch(0))
    with pytest.raises(RuntimeError, match=r"'blocks\.0' changes its buffer 'memory'"):
        model(batch(0))


class Counting(LargeBuffer):
    """Changes its large buffer from the beginning, and computes with it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.memory.add_(1.0)
        return (self.linear(x) * self.memory[:WIDTH]).tanh()


def test_a_large_buffer_that_always_changes_is_changed_once(patch: Any) -> None:
    def make() -> nn.Module:
        return Net(Counting)

    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        return model(batch(step))

    assert [] == differing(trace(make, loss_of), trace(make, loss_of, segments=patch))


class OnAGraph(nn.Module):
    """Multiplies by a sparse matrix, which the backward needs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        neighbours = torch.eye(6).roll(1, 0).to_sparse()
        self.register_buffer("neighbours", neighbours, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(self.neighbours, self.linear(x)).tanh()


@pytest.mark.skipif("simulated_gpu" in sys.modules, reason="it has no sparse tensors")
def test_a_block_may_save_sparse_tensors(patch: Any) -> None:
    def loss_of(model: nn.Module, step: int) -> torch.Tensor:
        loss: torch.Tensor = model(batch(step))
        return loss

    plain, patched = (
        trace(lambda: Net(OnAGraph), loss_of, segments=segments) for segments in (None, patch)
    )
    assert [] == differing(plain, patched)
