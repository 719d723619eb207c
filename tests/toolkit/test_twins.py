"""A model and an optimizer made anew from their outlines train as those that were given."""

from __future__ import annotations

import gc
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE
from sweep_nets import net_cases
from torch import nn
from verified import Net

from neaptide import ModelError
from neaptide.run.feed import moved
from neaptide_toolkit.twins.optimizer import OptimizerOutline
from neaptide_toolkit.twins.outline import Outline

if TYPE_CHECKING:
    from sweeps import Case


def net() -> Net:
    torch.manual_seed(0)
    return Net().to(DEVICE)


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
