"""`trainer.verify` names the guilty in a loop of one's own, and leaves the trainer as it is."""

from __future__ import annotations

import gc
import weakref
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import planted_faults as planted
import pytest
import torch
from support import DEVICE
from sweep_nets import net_cases
from torch import nn
from verified import CONFIG, Net, loss_of

from neaptide import ConfigError, DataError, HybridTrainer, ModelError
from neaptide.run.feed import moved
from neaptide_toolkit.twins.optimizer import OptimizerOutline
from neaptide_toolkit.twins.outline import Outline

if TYPE_CHECKING:
    from collections.abc import Callable

    from sweeps import Case


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


def _trained(case: Case, model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Train by hand, and return the error of a net that plain PyTorch cannot train."""
    torch.manual_seed(3)
    try:
        for batch in case.batches():
            case.loss_fn(model, moved(batch, DEVICE)).backward()
            optimizer.step()
            optimizer.zero_grad()
    except RuntimeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("case", [*islice(net_cases(), 0, 60, 3)], ids=lambda case: case.name)
def test_a_model_made_anew_trains_as_the_one_that_was_given(case: Case) -> None:
    torch.manual_seed(0)
    model = case.model().to(DEVICE)
    optimizer = case.optimizer(model)
    outline = Outline(model)
    groups = OptimizerOutline(optimizer, outline)
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    twin = outline.made({name: one.detach().clone() for name, one in state.items()})
    other = groups.made(twin)
    assert type(other) is type(optimizer)
    assert other.defaults == optimizer.defaults
    assert str(model) == str(twin)
    assert [*dict(model.named_parameters(remove_duplicate=False))] == [
        *dict(twin.named_parameters(remove_duplicate=False))
    ]
    assert _trained(case, model, optimizer) == _trained(case, twin, other)
    for name, value in model.state_dict().items():
        assert torch.equal(value.nan_to_num(), twin.state_dict()[name].nan_to_num()), name


def test_an_outline_keeps_marks_ties_and_strides_and_shares_nothing() -> None:
    model = net()
    model.head.bias.no_decay = True
    model.blocks[0].requires_grad_(requires_grad=False)
    model.blocks[1].up.weight.data = torch.empty(8, 16, device=DEVICE).t()
    model.register_buffer("hidden", torch.ones(2, device=DEVICE), persistent=False)
    model.blocks[1].register_forward_hook(lambda *_: None)
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    twin = Outline(model).made(values)
    assert twin.head.weight is twin.embedding.weight
    assert twin.head.bias.no_decay
    assert twin.blocks[1].up.weight.stride() == (1, 16)
    assert "hidden" not in twin.state_dict()
    assert [one.requires_grad for one in model.parameters()] == [
        one.requires_grad for one in twin.parameters()
    ]
    twin.blocks[1]._forward_hooks.clear()
    assert 1 == len(model.blocks[1]._forward_hooks)
    ours = {one.untyped_storage().data_ptr() for one in values.values()}
    assert not ours & {one.untyped_storage().data_ptr() for one in twin.parameters()}


def test_an_outline_keeps_no_value_alive() -> None:
    model = nn.Linear(4, 4)
    gone = weakref.ref(model.weight)
    outline = Outline(model)
    model.weight = nn.Parameter(torch.zeros(4, 4))
    gc.collect()
    assert gone() is None
    assert "weight" in outline.shapes()


class _Lookahead(torch.optim.AdamW):
    """Keeps its parameters in an attribute, too."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=0.1)
        self.slow = [one for group in self.param_groups for one in group["params"]]


def test_an_optimizer_that_keeps_parameters_is_copied_with_those_of_the_copy() -> None:
    model = net()
    outline = Outline(model)
    optimizer = _Lookahead(model.parameters())
    groups = OptimizerOutline(optimizer, outline)
    values = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    twin = outline.made(values)
    made: Any = groups.made(twin)
    assert all(one is other for one, other in zip(made.slow, twin.parameters(), strict=True))
    model.head.bias = nn.Parameter(model.head.bias.detach().clone())  # as a plugin may do
    with pytest.raises(ModelError, match="optimizer has parameters that the model has not"):
        groups.made(twin)


def test_a_tensor_of_another_class_is_refused_where_a_copy_is_made() -> None:
    outline = Outline(nn.LazyLinear(3))
    with pytest.raises(ModelError, match="'weight' is a UninitializedParameter"):
        outline.made({})


def test_tensors_of_an_outlined_model_can_be_swapped() -> None:
    """Torch refuses to swap a tensor with a weak reference."""
    model = net()
    outline = Outline(model)
    torch.utils.swap_tensors(model.head.bias, nn.Parameter(torch.ones(11, device=DEVICE)))
    assert "head.bias" in outline.shapes()


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
