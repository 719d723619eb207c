"""Gradients of a weight that is used several times are added in the resident model's order."""

from __future__ import annotations

import gc
import weakref
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import DEVICE
from support import same_tensors, tensors_of
from torch import nn
from torch.nn import functional

from neaptide import HybridTrainer, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 8


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.recurrent = kind(WIDTH, WIDTH, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = x + self.recurrent(self.norm(x))[0]
        return found


class Twice(nn.Module):
    """Uses its weight twice in a call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(torch.tanh(self.linear(x))))


class CastAndNot(nn.Module):
    """Uses its weight as it is, whose gradient is float32, and in products, where it is cast."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.linear.weight
        return x + torch.tanh(self.linear(x * weight.sum(0)) @ weight)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: Recurrent(nn.RNN),
    "GRU": lambda: Recurrent(nn.GRU),
    "LSTM": lambda: Recurrent(nn.LSTM),
    "twice": Twice,
    "cast and not": CastAndNot,
    "encoder layer": lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True),
}
NUMBERS = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "autocast": (torch.float32, True),
}


class Net(nn.Module):
    """Three blocks, called `times` times each; if tied, the last has the weights of the first."""

    def __init__(self, block: Callable[[], nn.Module], times: int, *, tied: bool) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 3)
        self.times = times
        if tied:
            for name, parameter in [*self.blocks[0].named_parameters()]:
                path, _, last = name.rpartition(".")
                setattr(self.blocks[2].get_submodule(path), last, parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            for _ in range(self.times):
                x = block(x)
        found: torch.Tensor = self.head(x).mean(1)
        return found


def batch(seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(6, 5, WIDTH, generator=generator).to(DEVICE, dtype)
    return {"x": x, "y": torch.randint(0, 3, (6,), generator=generator).to(DEVICE)}


def trained(
    block: str,
    numbers: str,
    times: int,
    settings: dict[str, Any] | None,
    *,
    tied: bool,
    contexts: int = 1,
    change: Callable[[nn.Parameter], Any] | None = None,
    before: Callable[[Any], None] | None = None,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    dtype, autocast = NUMBERS[numbers]
    torch.manual_seed(0)
    model = Net(BLOCKS[block], times, tied=tied).to(DEVICE, dtype)
    if before is not None:
        before(model)
    for parameter in model.blocks.parameters():
        if change is not None:
            change(parameter)

    def loss_fn(model: nn.Module, given: Any) -> torch.Tensor:
        total: Any = 0.0
        for _ in range(contexts):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
                output = model(given["x"])
            total = total + functional.cross_entropy(output.float(), given["y"])
        return total

    plugins = {} if settings is None else {"layer-streaming": {"max_active_layers": 3, **settings}}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    config = {"plugins": plugins}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
        losses = [trainer.step(batch(seed, dtype)).loss for seed in range(3)]
    return losses, {name: value.cpu() for name, value in tensors_of(model).items()}


resident = cache(trained)
WAYS: dict[str, dict[str, Any]] = {
    "recompute": {},
    "in backward": {"optimizer_on": "device", "update": "in_backward"},
    "graph": {"mode": "graph"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("times", "tied"), [(1, False), (1, True), (2, False), (3, True)])
@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("block", BLOCKS)
def test_the_bits_are_the_resident_models(
    block: str, numbers: str, times: int, way: str, *, tied: bool
) -> None:
    expected, others = resident(block, numbers, times, None, tied=tied)
    losses, weights = trained(block, numbers, times, WAYS[way], tied=tied)
    assert expected == losses
    assert same_tensors(others, weights)


@pytest.mark.parametrize("way", ["recompute", "in backward"])
@pytest.mark.parametrize("block", BLOCKS)
def test_the_bits_are_the_resident_models_in_several_autocast_contexts(
    block: str, way: str
) -> None:
    """Each context casts a weight anew, so float32 gradients are added between contexts."""
    losses, weights = trained(block, "autocast", 2, WAYS[way], tied=True, contexts=2)
    expected, others = resident(block, "autocast", 2, None, tied=True, contexts=2)
    assert expected == losses
    assert same_tensors(others, weights)


@pytest.mark.parametrize("way", ["recompute", "in backward"])
def test_a_weight_beside_a_shared_one_keeps_all_terms(way: str) -> None:
    def share(model: Any) -> None:
        model.blocks[2].linear.bias = model.blocks[0].linear.bias

    expected, others = resident("cast and not", "autocast", 1, None, tied=False, before=share)
    losses, weights = trained("cast and not", "autocast", 1, WAYS[way], tied=False, before=share)
    assert expected == losses
    assert same_tensors(others, weights)


def test_a_use_whose_output_is_not_used_loses_no_gradient() -> None:
    def weights(plugins: dict[str, Any]) -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        model = Net(BLOCKS["GRU"], 1, tied=False).to(DEVICE)

        def loss_fn(model: nn.Module, given: Any) -> torch.Tensor:
            with torch.autocast(DEVICE.type, torch.bfloat16):
                model(given["x"])  # its graph is dropped
                return functional.cross_entropy(model(given["x"]).float(), given["y"])

        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        config = {"plugins": plugins}
        with HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config) as trainer:
            trainer.step(batch(0, torch.float32))
        return {name: value.cpu() for name, value in tensors_of(model).items()}

    assert same_tensors(weights({}), weights({"layer-streaming": {}}))


def smaller(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-1e-3, 1e-3)


HOOKS: dict[str, Callable[[nn.Parameter], Any]] = {
    "tensor": lambda one: one.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3)),
    "accumulated": lambda one: one.register_post_accumulate_grad_hook(smaller),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("way", WAYS)
def test_a_hook_sees_a_whole_gradient_or_the_block_is_refused(way: str, hook: str) -> None:
    def found(times: int, settings: dict[str, Any] | None) -> Any:
        return trained("RNN", "float32", times, settings, tied=False, change=HOOKS[hook])

    (losses, weights), (others, expected) = found(1, WAYS[way]), found(1, None)
    assert losses == others
    assert same_tensors(weights, expected)
    if way == "graph" and DEVICE.type == "cpu":
        assert found(2, WAYS[way])[0] == found(2, None)[0]
        return
    with pytest.raises(ModelError, match=r"a hook on the gradient of .* would see a part of it"):
        found(2, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_a_graph_without_a_backward_is_freed(way: str) -> None:
    model = Net(BLOCKS["twice"], 2, tied=True).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made: list[Any] = []

    class Kept:
        """Lives as long as the node that refers to it."""

    def note(_: nn.Module, __: Any, output: torch.Tensor) -> None:
        kept = Kept()
        if output.grad_fn is not None:
            output.grad_fn.metadata["kept"] = kept
            made.append(weakref.ref(kept))

    def loss_fn(model: nn.Module, given: Any) -> torch.Tensor:
        model(given["x"])
        return functional.cross_entropy(model(given["x"]), given["y"])

    plugins = {"layer-streaming": {"max_active_layers": 3, **WAYS[way]}}
    with HybridTrainer(model, optimizer, loss_fn=loss_fn, config={"plugins": plugins}) as trainer:
        for block in model.blocks:
            block.register_forward_hook(note)
        trainer.step(batch(0, torch.float32))
        gc.collect()
        assert len(made) >= 12
        assert all(one() is None for one in made)
