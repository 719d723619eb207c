"""How much a forward leaves alive, counted by the storages that ops have made."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
import torch
from checkpointed import attached
from support import DEVICE, random_state
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WIDTH, ROWS, DEPTH = 64, 128, 12
ACTIVATION = WIDTH * ROWS * 4
"""Bytes of one float32 activation."""


@pytest.fixture(autouse=True)
def _without_garbage_collection() -> Iterator[None]:
    # What only a collection frees is memory that a training step does not have.
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class Storages(TorchDispatchMode):
    """Notes, weakly, every storage that an op returns."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returned = op(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return returned

    def alive(self, without: list[torch.Tensor]) -> int:
        """Bytes of the storages not freed yet, those of the tensors given left out."""
        own = {tensor.untyped_storage()._cdata for tensor in without}
        return sum(
            size
            for address, (storage, size) in self._seen.items()
            if address not in own and not storage.expired()
        )


class Block(nn.Module):
    """Saves four activations of the stream's width and more."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(torch.nn.functional.gelu(self.up(x))))


def make() -> nn.Module:
    return nn.Sequential(*(Block() for _ in range(DEPTH))).to(DEVICE)


def left_alive(model: nn.Module, finish: Callable[[torch.Tensor], Any] = lambda loss: loss) -> int:
    """Return the bytes alive after a forward (the second: in the first, blocks are learned)."""
    x = torch.randn(ROWS, WIDTH, device=DEVICE, requires_grad=True)
    model(x).sum().backward()
    with Storages() as storages:
        held = finish(model(x).sum())
        alive = storages.alive([x, *model.parameters()])
        del held
    return alive


@pytest.mark.parametrize(
    ("settings", "share"),
    [
        ({"interval": 1}, 0.25),
        ({"interval": 4}, 0.1),
        ({"interval": 12}, 0.05),
        ({"interval": 4, "ratio": 0.67}, 0.45),
    ],
)
def test_most_activations_are_not_kept(settings: dict[str, Any], share: float) -> None:
    model = make()
    plain = left_alive(model)
    assert plain > 5 * DEPTH * ACTIVATION
    segments = attached(model, **settings)
    assert left_alive(model) < share * plain
    segments.detach()
    assert plain == left_alive(model)


def test_what_it_counts_as_kept_is_what_is_alive() -> None:
    model = make()
    segments = attached(model, interval=3)
    alive = left_alive(model)
    segments.reset_statistics()
    model(torch.randn(ROWS, WIDTH, device=DEVICE, requires_grad=True))
    assert DEPTH // 3 * ACTIVATION == segments.kept_bytes
    # Besides, each block's random state waits for its second run; the first input is the user's.
    random_states = DEPTH * random_state().nbytes
    assert 0 <= alive - (segments.kept_bytes - ACTIVATION) <= random_states + ACTIVATION


def test_saved_ops_are_kept() -> None:
    model = make()
    plain = left_alive(model)
    attached(model, interval=4, save_ops=("matmul",))
    products = DEPTH * 3 * ACTIVATION
    assert products <= left_alive(model) < min(products * 1.3, plain)


def test_a_forward_without_a_backward_leaves_nothing() -> None:
    model = make()
    segments = attached(model, interval=4)
    assert 0 == left_alive(model, lambda loss: loss.detach().item())
    assert None is segments._current()


def test_a_backward_leaves_nothing() -> None:
    model = make()
    attached(model, interval=4)
    gradients = left_alive(model, lambda loss: loss.backward())
    # Nothing but gradients, of the parameters and of the input.
    assert sum(parameter.nbytes for parameter in model.parameters()) + ACTIVATION == gradients
