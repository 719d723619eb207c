from __future__ import annotations

from typing import Any

import pytest
import torch
from stepped_away import (
    CONFIGURATIONS,
    Away,
    Options,
    assert_same_state,
    assert_same_weights,
    names,
    parameters_of,
    step_resident,
    two_groups,
)
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neaptide import ModelError
from neaptide_plugins.layer_streaming.updates.stepping import (
    Item,
    adoptable,
    state_layout,
    step_away,
)


def one_adam(**options: Any) -> tuple[optim.Adam, nn.Parameter, Away]:
    parameters = parameters_of([(4, 6), (3,)])
    optimizer = optim.Adam(parameters, lr=0.1, **options)
    return optimizer, parameters[0], Away(optimizer, parameters)


def test_what_is_shown_is_kept_and_what_is_loaded_counts() -> None:
    optimizer, parameter, away = one_adam()
    shown = {name: torch.zeros(4, 6) for name in away.states[0]}
    item = away.item(0, torch.ones(4, 6), shown=shown)
    step_away(optimizer, [item])
    assert all(optimizer.state[parameter][name] is tensor for name, tensor in shown.items())
    working = {name: tensor.clone() for name, tensor in away.states[0].items()}
    step_away(optimizer, [item])  # the working tensors count, not those shown
    assert torch.equal(away.states[0]["exp_avg"], working["exp_avg"] * 0.9 + 0.1)
    optimizer.state[parameter]["exp_avg"] = torch.full((4, 6), 2.0)
    step_away(optimizer, [item])
    torch.testing.assert_close(away.states[0]["exp_avg"], torch.full((4, 6), 2 * 0.9 + 0.1))
    assert optimizer.state[parameter]["exp_avg"] is shown["exp_avg"]


def test_the_rest_of_a_split_master_may_be_shown_and_loaded() -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    optimizer = optim.Adam([parameter], lr=0.0)
    away = Away(optimizer, [parameter], masters=[torch.ones(3)])
    lo = away.lows[0]
    assert lo is not None
    item = away.item(0, torch.zeros(3), shown={**away.states[0], "lo": lo})
    optimizer.state[parameter]["lo"] = lo
    step_away(optimizer, [item])
    assert {"step", "exp_avg", "exp_avg_sq", "lo"} == set(optimizer.state[parameter])
    optimizer.state[parameter]["lo"] = torch.full((3,), 5, dtype=torch.int16)
    step_away(optimizer, [item])
    assert [5, 5, 5] == lo.tolist()
    assert optimizer.state[parameter]["lo"] is lo


@pytest.mark.parametrize("fails", ["before", "between groups", "after"])
def test_a_step_that_raises_leaves_groups_and_state_as_they_were(fails: str) -> None:
    parameters = parameters_of([(4, 6), (3,)])
    optimizer = optim.SGD(two_groups(parameters), momentum=0.9)
    away = Away(optimizer, parameters)
    gradients = [torch.ones(4, 6), torch.ones(3)]
    items = [away.item(0, gradients[0]), away.item(1, gradients[1])]
    if fails == "before":
        items.append(Item(nn.Parameter(torch.ones(2)), torch.ones(2), torch.ones(2)))
    elif fails == "between groups":
        optimizer.param_groups[1]["lr"] = "much"
    else:
        items[1] = away.item(1, gradients[1], state={})
    groups, members = optimizer.param_groups, [dict(g) for g in optimizer.param_groups]
    state = optimizer.state
    with pytest.raises((ModelError, ValueError, TypeError)):
        step_away(optimizer, items)
    assert optimizer.param_groups is groups
    assert optimizer.state is state
    assert not state
    for before, group in zip(members, groups, strict=True):
        assert before.keys() == group.keys()
        assert all(group[name] is value for name, value in before.items())


def test_state_that_there_is_no_room_for_is_refused_by_name() -> None:
    parameters = parameters_of([(4, 6)])
    optimizer = optim.SGD(parameters, lr=0.1)
    away = Away(optimizer, parameters)
    step_away(optimizer, [away.item(0, torch.ones(4, 6))])
    assert not optimizer.state
    optimizer.param_groups[0]["momentum"] = 0.9
    with pytest.raises(ModelError, match=r"'momentum_buffer' for a parameter of shape \(4,"):
        step_away(optimizer, [away.item(0, torch.ones(4, 6))])


def test_a_parameter_twice_in_a_step_is_refused() -> None:
    optimizer, _, away = one_adam()
    with pytest.raises(ModelError, match="twice"):
        step_away(optimizer, [away.item(0, torch.ones(4, 6))] * 2)


def test_hooks_and_wrappers_of_the_step_do_not_run() -> None:
    optimizer, parameter, away = one_adam()
    calls: list[str] = []
    handle = register_optimizer_step_pre_hook(lambda *_: calls.append("all"))
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))
    optimizer.step = lambda: calls.append("step")  # type: ignore[method-assign, assignment]
    step_away(optimizer, [away.item(0, torch.ones(4, 6))])
    handle.remove()
    assert not calls
    assert 1 == optimizer.state[parameter]["step"].item()


def test_strides_are_those_of_the_weight() -> None:
    weight = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    resident, moved = nn.Parameter(weight.clone()), nn.Parameter(weight.clone())
    expected, actual = optim.Adam([resident]), optim.Adam([moved])
    away = Away(actual, [moved])
    for _ in range(3):
        gradient = torch.randn(2, 3, 4, 5)
        step_resident(expected, [resident], {0: gradient})
        step_away(actual, [away.item(0, gradient)])
    assert_same_weights([resident], away)
    assert_same_state(expected, actual, away)
    assert expected.state[resident]["exp_avg"].stride() == away.states[0]["exp_avg"].stride()


def test_a_gradient_of_another_dtype_is_taken_in_the_weights() -> None:
    resident, moved = (parameters_of([(4, 6)], torch.bfloat16) for _ in range(2))
    expected, actual = optim.Adam(resident), optim.Adam(moved)
    away = Away(actual, moved)
    gradient = torch.randn(4, 6)
    step_resident(expected, resident, {0: gradient.bfloat16()})
    step_away(actual, [away.item(0, gradient)])
    assert_same_weights(resident, away)


@pytest.mark.parametrize("options", [{"fused": True}, {"fused": False}], ids=str)
def test_a_gradient_may_have_strides_of_its_own(options: Options) -> None:
    resident = parameters_of([(4, 6)])
    expected = optim.AdamW(resident, **options)
    parameters = [nn.Parameter(resident[0].detach().clone())]
    away = Away(optim.AdamW(parameters, **options), parameters)
    gradient = torch.randn(6, 4).t()
    step_resident(expected, resident, {0: gradient.contiguous()})
    step_away(away.optimizer, [away.item(0, gradient)])
    assert_same_weights(resident, away)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("cls", "options"), CONFIGURATIONS, ids=names)
def test_the_layout_is_what_a_first_step_leaves(
    cls: type[optim.Optimizer], options: Options, dtype: torch.dtype
) -> None:
    ours: Any = cls
    parameter = parameters_of([(3, 2)], dtype)[0]
    optimizer = ours([parameter], **options)
    layout = state_layout(optimizer, optimizer.param_groups[0], dtype)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    left = optimizer.state[parameter].items()
    assert {name: value.dtype for name, value in left if value.dim()} == layout


def test_a_layout_asks_for_no_device_and_changes_nothing() -> None:
    parameter = nn.Parameter(torch.ones(3, 2))
    optimizer = optim.AdamW([parameter], lr=torch.tensor(0.1), fused=True, amsgrad=True)
    names = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}
    layout = state_layout(optimizer, optimizer.param_groups[0], torch.float32)
    assert dict.fromkeys(names, torch.float32) == layout
    assert not optimizer.state
    assert torch.equal(torch.ones(3, 2), parameter)


def test_what_cannot_be_adopted_says_why() -> None:
    class Mine(optim.AdamW):
        pass

    class Separable(optim.AdamW):
        separable = True

    class Heir(Separable):
        pass

    parameters = parameters_of([(4, 6)])
    assert "Mine is none of torch.optim's" in str(adoptable(Mine(parameters)))
    assert adoptable(Separable(parameters)) is None
    assert "Heir is none of torch.optim's" in str(adoptable(Heir(parameters)))
    assert "LBFGS is none of" in str(adoptable(optim.LBFGS(parameters)))
    assert "Adafactor is none of" in str(adoptable(optim.Adafactor(parameters)))
    assert "SparseAdam is none of" in str(adoptable(optim.SparseAdam(parameters)))
    differentiable = adoptable(optim.Adam(parameters, differentiable=True))
    assert "differentiable=True in parameter group 0" in str(differentiable)
    groups = [{"params": parameters}, {"params": parameters_of([(2,)]), "capturable": True}]
    assert "capturable=True in parameter group 1" in str(adoptable(optim.AdamW(groups)))
    assert adoptable(optim.AdamW(parameters, amsgrad=True, fused=True)) is None
