"""`trainer.verify` names the guilty in a loop of one's own, and leaves the trainer as it is."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import planted_faults as planted
import pytest
import torch
from support import DEVICE
from torch import nn
from verified import CONFIG, Net, loss_of

from neaptide import ConfigError, DataError, HybridTrainer, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable


def net() -> Net:
    torch.manual_seed(0)
    return Net().to(DEVICE)


def batches(count: int = 4) -> list[Any]:
    made = torch.Generator().manual_seed(1)
    ids = [torch.randint(11, (4, 6), generator=made).to(DEVICE) for _ in range(count)]
    return [{"ids": one, "targets": one.roll(1, 1)} for one in ids]


def trainer_of(
    model: nn.Module, *specs: Any, loss_fn: Any = loss_of, **plugins: Any
) -> HybridTrainer:
    named = {name.replace("_", "-"): value for name, value in plugins.items()}
    config = {"plugins": named, "train": {"clip_norm": 0.5}}
    optimizer = torch.optim.AdamW(
        [
            {"params": [one], "lr": 1e-3 * (1 + place)}
            for place, one in enumerate(model.parameters())
        ]
    )
    return HybridTrainer(model, optimizer, loss_fn=loss_fn, config=config, plugins=specs)


@pytest.mark.parametrize(
    ("fault", "tensor"),
    [
        (planted.scaled, "gradients/"),
        (planted.loses_a_buffer, "buffers/blocks.1.calls"),
        (planted.draws, "random/"),
        (planted.rounds, "weights/blocks.1.up.weight"),
        (planted.edits, "batch/targets"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_fault_is_named_in_a_loop_of_ones_own(fault: Callable[[], Any], tensor: str) -> None:
    spec = fault()
    with trainer_of(net(), spec, activation_checkpointing={}) as trainer:
        found = trainer.verify(batches(), steps=4)
    assert [(spec.name,)] == [one.plugins for one in found.findings], str(found)
    assert str(found.findings[0].difference.parting.name).startswith(tensor)


@pytest.mark.parametrize(
    "plugins",
    [
        {"ema": {}, "activation_checkpointing": {}},
        {"layer_streaming": {}},
        {"layer_streaming": {"optimizer_on": "device", "mode": "graph"}},
        {"mixed_precision": {}, "layer_streaming": {}},
        {"optimizer_offload": {}, "predictor_momentum": {}},
        {"gradient_accumulation": {"steps": 2}},
    ],
    ids=str,
)
def test_a_verified_trainer_goes_on_with_the_same_bits(plugins: dict[str, Any]) -> None:
    given = batches(6)
    ends = []
    for verified in (False, True):
        with trainer_of(net(), **plugins) as trainer:
            for batch in given[:3]:
                trainer.step(batch)
            if verified:
                found = trainer.verify(given, steps=4)
                assert found.right, str(found)
            for batch in given[3:]:
                trainer.step(batch)
            ends.append(trainer.digest())
    assert ends[0] == ends[1]


def test_the_present_weights_are_verified() -> None:
    """A fault that needs a value of the weights shows only there."""
    only_beside_ones = planted.scaled()
    model = net()
    with trainer_of(model, only_beside_ones) as trainer:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        found = trainer.verify(batches(), steps=2)
    assert "gradients/head.bias" in str(found)  # others have no gradient at zero


def test_a_trainer_from_a_configuration_takes_its_data_or_batches() -> None:
    with HybridTrainer.from_config({**CONFIG, "plugins": {"ema": {}}}) as trainer:
        assert trainer.verify(steps=2).right
        with pytest.raises(DataError, match="no batch to verify with"):
            trainer.verify([])
    with trainer_of(net()) as trainer, pytest.raises(DataError, match="pass some"):
        trainer.verify()


class _Listed(nn.Module):
    """A module that keeps its children in a list, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)
        self.order = [self.layer]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.order[0](x)
        return found


def _mean(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(batch).square().mean()
    return found


def test_what_cannot_be_made_anew_is_refused_in_one_line() -> None:
    inputs = [torch.randn(4, 8, device=DEVICE)] * 2
    with (
        trainer_of(_Listed().to(DEVICE), loss_fn=_mean) as trainer,
        pytest.raises(ModelError, match=r"the model: an attribute refers to a part .*make="),
    ):
        trainer.verify(inputs, steps=2)
    with (
        trainer_of(net(), planted.drops_a_buffer()) as trainer,
        pytest.raises(ModelError, match=r"plugin has replaced 'blocks\.2\.calls'"),
    ):
        trainer.verify(batches())
    strange = nn.Parameter(torch.zeros(3, device=DEVICE))
    optimizer = torch.optim.SGD([*(own := nn.Linear(8, 1, device=DEVICE)).parameters(), strange])
    with (
        HybridTrainer(own, optimizer, loss_fn=_mean) as trainer,
        pytest.raises(ModelError, match="optimizer has parameters that the model has not"),
    ):
        trainer.verify(inputs, steps=2)


class _Holder:
    """Holds the model, and computes a loss of it."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def loss(self, _: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return _mean(self.net, batch)

    __call__ = loss


def _of_another(_: nn.Module, batch: torch.Tensor, *, net: nn.Module) -> torch.Tensor:
    return _mean(net, batch)


def _with_state(model: nn.Module, batch: torch.Tensor, *, state: dict[str, Any]) -> torch.Tensor:
    return _mean(model, batch) + state["0.weight"].square().sum()


OTHER_WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "a closure": lambda net: lambda _, batch: _mean(net, batch),
    "a list": lambda net: lambda _, batch, kept=(net,): _mean(kept[0], batch),
    "a method": lambda net: _Holder(net).loss,
    "an object": _Holder,
    "a partial": lambda net: partial(_of_another, net=net),
    "its forward": lambda net: lambda _, batch, call=net.forward: call(batch).square().mean(),
    "a parameter": lambda net: lambda m, batch, w=net[0].weight: _mean(m, batch) + w.sum(),
    "its state": lambda net: partial(_with_state, state=net.state_dict(keep_vars=True)),
}


@pytest.mark.parametrize("plugins", [{}, {"layer_streaming": {}}], ids=["plain", "streamed"])
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_loss_of_the_trained_model_is_refused_and_leaves_it_as_it_is(
    way: str, plugins: dict[str, Any]
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)).to(DEVICE)
    inputs = [torch.randn(4, 8, device=DEVICE)] * 2
    with trainer_of(model, loss_fn=OTHER_WAYS[way](model), ema={}, **plugins) as trainer:
        before = trainer.digest()
        with pytest.raises(ModelError, match=r"loss_fn.*of the trained"):
            trainer.verify(inputs, steps=2)
        assert before == trainer.digest()
    assert all(one.grad is None for one in model.parameters())


def test_a_loss_of_a_part_with_the_name_of_the_model_is_verified() -> None:
    model = nn.Sequential()
    model.add_module("model", nn.Linear(8, 1, device=DEVICE))
    inputs = [torch.randn(4, 8, device=DEVICE)] * 2

    def loss(given: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return _mean(given.model, batch)  # type: ignore[arg-type]  # a module

    with trainer_of(model, loss_fn=loss) as trainer:
        assert trainer.verify(inputs, steps=2).right


def test_a_criterion_is_copied_and_a_loader_moves_no_random_state() -> None:
    criterion = nn.BatchNorm1d(8).to(DEVICE)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = criterion

        def forward(self, model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return _mean(model, self.norm(batch))

    rows = torch.utils.data.DataLoader(torch.randn(16, 8, device="cpu").to(DEVICE), 4, shuffle=True)
    with trainer_of(nn.Linear(8, 1, device=DEVICE), loss_fn=Loss(), ema={}) as trainer:
        before = trainer.digest()
        assert trainer.verify(rows, steps=2).right
        assert before == trainer.digest()
    assert 0 == int(criterion.num_batches_tracked)


def test_an_update_of_several_batches_is_not_compared() -> None:
    plugins = {"gradient_accumulation": {"steps": 4, "across_steps": True}}
    with (
        trainer_of(net(), **plugins, ema={}) as trainer,
        pytest.raises(ConfigError, match="compares updates of one batch, and here several"),
    ):
        trainer.verify(batches(8), steps=4)
