"""What torch checks of its own optimizers (`optim_db` and test_optim.py), checked of ours."""

from __future__ import annotations

import copy
import io
import pickle
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from optimizers_of_ours import KINDS, Kind
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.testing._internal.common_optimizers import (
    OptimizerErrorEnum,
    get_error_inputs_for_all_optims,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.usefixtures("on_device")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    values = torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32)
    return values.to(torch.get_default_device(), dtype)


def weights(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    return [nn.Parameter(drawn(*shape, dtype=dtype)) for shape in ((12, 8), (8, 12), (4, 4))]


def train(optimizer: torch.optim.Optimizer, steps: int = 3, first: int = 0) -> None:
    for step in range(first, first + steps):
        for group in optimizer.param_groups:
            for place, param in enumerate(group["params"]):
                param.grad = drawn(*param.shape, seed=100 * step + place, dtype=param.dtype)
        optimizer.step()


def copied(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def same(one: Sequence[torch.Tensor], other: Sequence[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def loss_of(params: Sequence[torch.Tensor]) -> torch.Tensor:
    return sum((param.float().square().mean() for param in params), torch.zeros(()))


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize("case", range(len(get_error_inputs_for_all_optims("cpu", torch.float))))
def test_what_torch_refuses_is_refused(kind: Kind, case: int) -> None:
    wrong = get_error_inputs_for_all_optims("cpu", torch.float32)[case]
    assert wrong.error_on is OptimizerErrorEnum.CONSTRUCTION_ERROR
    given = wrong.optimizer_error_input
    params = weights() if given.params is None else given.params
    if issubclass(wrong.error_type, Warning):
        with pytest.warns(wrong.error_type, match=wrong.error_regex):
            kind.make(params, **(kind.options | given.kwargs))
        return
    with pytest.raises(wrong.error_type, match=wrong.error_regex):
        kind.make(params, **(kind.options | given.kwargs))


@pytest.mark.parametrize("lr", [-0.1, float("nan"), float("inf")])
def test_a_wrong_rate_is_refused_in_one_line(kind: Kind, lr: float) -> None:
    for act in (
        lambda: kind.make(weights(), **(kind.options | {"lr": lr})),
        lambda: kind.make([{"params": weights(), "lr": lr}], **kind.options),
    ):
        with pytest.raises(ValueError, match="lr") as caught:
            act()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("option", "value"),
    [("seed", 1.5), ("seed", 1 << 64), ("betas", (0.9,)), ("betas", (0.9,) * 4)],
)
def test_a_wrong_option_is_refused_in_one_line(kind: Kind, option: str, value: Any) -> None:
    probe = kind.make(weights(), **kind.options)
    for groups, more in (
        (weights(), {option: value}),
        ([{"params": weights(), option: value}], {}),
    ):
        if option not in probe.defaults:
            continue
        with pytest.raises(ValueError, match=rf"^{type(probe).__name__}: {option}") as caught:
            kind.make(groups, **kind.options, **more)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("option", ["foreach", "fused", "differentiable", "capturable", "maximize"])
def test_an_option_of_torch_that_it_lacks_is_refused(kind: Kind, option: str) -> None:
    with pytest.raises(TypeError, match=option):
        kind.make(weights(), **kind.options, **{option: True})


@pytest.mark.usefixtures("on_cpu")  # the simulated GPU has neither
def test_complex_weights_and_sparse_gradients_are_refused_in_one_line(kind: Kind) -> None:
    with pytest.raises(ValueError, match="complex64") as caught:
        kind.make([nn.Parameter(torch.ones(2, 2, dtype=torch.cfloat))], **kind.options)
    assert "\n" not in str(caught.value)

    table = nn.Embedding(6, 4, sparse=True)
    table(torch.tensor([1])).sum().backward()
    before = copied(table.parameters())
    with pytest.raises(ValueError, match=r"dense|strided|sparse") as caught:
        kind.make(table.parameters(), **kind.options).step()
    assert "\n" not in str(caught.value)
    assert same(before, [*table.parameters()])


@pytest.mark.parametrize("is_contiguous", [True, False])
@pytest.mark.parametrize("scheduler", [None, StepLR, ReduceLROnPlateau])
def test_it_goes_the_right_way(kind: Kind, scheduler: Any, *, is_contiguous: bool) -> None:
    start = drawn(8, 6)
    weight = nn.Parameter(start if is_contiguous else drawn(6, 8).mT)
    optimizer = kind.make([weight], **kind.options)
    more = {"step_size": 10} if scheduler is StepLR else {}
    schedule = scheduler(optimizer, **more) if scheduler else None
    before = loss_of([weight]).item()
    for _ in range(20):
        optimizer.zero_grad()
        loss = loss_of([weight])
        loss.backward()
        optimizer.step()
        if schedule:
            schedule.step(*([loss.item()] if scheduler is ReduceLROnPlateau else []))
    assert loss_of([weight]).item() < before


def test_strides_make_no_difference(kind: Kind) -> None:
    plain, turned = nn.Parameter(drawn(8, 6)), nn.Parameter(drawn(8, 6).mT.contiguous().mT)
    optimizers = [kind.make([each], **kind.options) for each in (plain, turned)]
    for seed in range(3):
        plain.grad = drawn(8, 6, seed=seed)
        turned.grad = plain.grad.clone() if seed else plain.grad.mT.contiguous().mT
        for optimizer in optimizers:
            optimizer.step()
    torch.testing.assert_close(plain, turned)


def test_a_rate_may_be_a_tensor_of_one(kind: Kind) -> None:
    number, tensor = weights(), weights()
    lr = kind.options["lr"]
    train(kind.make(number, **kind.options))
    train(kind.make(tensor, **(kind.options | {"lr": torch.tensor(lr, dtype=torch.float64)})))
    torch.testing.assert_close(number, tensor)


def test_each_group_has_its_rate_and_decay(kind: Kind) -> None:
    still, decayed, free = weights()[0], nn.Parameter(drawn(5, 5)), nn.Parameter(drawn(5, 5))
    groups = [
        {"params": [still], "lr": 0.0},
        {"params": [decayed], "weight_decay": 0.5},
        {"params": [free], "weight_decay": 0.0},
    ]
    before = copied([still])
    train(kind.make(groups, **kind.options))
    assert same(before, [still])
    assert decayed.norm() < free.norm()


def test_a_group_that_is_added_is_updated_and_numbered_on(kind: Kind) -> None:
    first, second = weights()[:1], weights()[1:]
    optimizer = kind.make(first, **kind.options)
    train(optimizer, 1)
    before = copied(second)
    optimizer.add_param_group({"params": second})
    train(optimizer, 1)
    assert not any(map(torch.equal, before, second))
    assert [[0], [1, 2]] == [group["params"] for group in optimizer.state_dict()["param_groups"]]


def public(optimizer: torch.optim.Optimizer) -> set[str]:
    return {name for name in vars(optimizer) if not name.startswith("_")}


def each_dtype() -> list[Any]:
    pairs = ((name, dtype) for name, kind in KINDS.items() for dtype in kind.dtypes)
    return [pytest.param(KINDS[name], dtype, id=f"{name}-{dtype}") for name, dtype in pairs]


@pytest.mark.parametrize(("kind", "dtype"), each_dtype())
def test_a_saved_state_goes_on_bit_for_bit(kind: Kind, dtype: torch.dtype) -> None:
    """By `torch.save` and `weights_only`, by pickle, and by deepcopy."""
    whole = weights(dtype)
    optimizer = kind.make(whole, **kind.options)
    train(optimizer, 3)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    unpickled = pickle.loads(pickle.dumps(optimizer))
    duplicate = copy.deepcopy(optimizer)
    kept = copied(whole)
    train(optimizer, 3, first=3)

    again = [nn.Parameter(weight) for weight in kept]
    resumed = kind.make(again, **kind.options)
    resumed.load_state_dict(saved)
    for each in (resumed, unpickled, duplicate):
        train(each, 3, first=3)
        found = [param for group in each.param_groups for param in group["params"]]
        assert same(whole, found)
        assert public(optimizer) == public(each)


def test_a_state_is_saved_alike_each_time(kind: Kind) -> None:
    optimizer = kind.make(weights(), **kind.options)
    train(optimizer)
    one, other = optimizer.state_dict(), optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    for number, state in one["state"].items():
        assert [*state] == [*other["state"][number]]
        assert same([*state.values()], [*other["state"][number].values()])


def test_named_parameters_keep_their_names(kind: Kind) -> None:
    named = [(f"weight{place}", weight) for place, weight in enumerate(weights())]
    optimizer = kind.make(named, **kind.options)
    train(optimizer)
    (group,) = optimizer.state_dict()["param_groups"]
    assert ["weight0", "weight1", "weight2"] == group["param_names"]


def test_nothing_is_done_without_gradients_and_gradients_stay(kind: Kind) -> None:
    params = weights()
    optimizer, before = kind.make(params, **kind.options), copied(params)
    optimizer.step()
    assert same(before, params)
    assert not any(optimizer.state.values())

    params[0].grad = drawn(*params[0].shape)
    gradient = params[0].grad.clone()
    optimizer.step()
    assert same([gradient], [params[0].grad])
    assert same(before[1:], params[1:])


def test_gradients_of_zero_change_nothing_without_decay(kind: Kind) -> None:
    params = weights()
    before = copied(params)
    optimizer = kind.make(params, **(kind.options | {"weight_decay": 0.0}))
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert same(before, params)


def test_weights_of_no_size_are_updated_beside_others(kind: Kind) -> None:
    (other, *_), empty = weights(), nn.Parameter(torch.empty(0, 4))
    groups = [{"params": [empty], **kind.empty}, {"params": [other]}]
    optimizer, before = kind.make(groups, **kind.options), copied([other])
    train(optimizer, 2)
    assert not same(before, [other])
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    train(optimizer, 1)
    assert empty.shape == (0, 4)


def test_a_closure_hooks_and_a_printed_form(kind: Kind) -> None:
    params = weights()
    optimizer = kind.make(params, **kind.options)
    told: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: told.append("before"))
    optimizer.register_step_post_hook(lambda *_: told.append("after"))
    optimizer.register_state_dict_post_hook(lambda *_: told.append("saved"))
    optimizer.register_load_state_dict_post_hook(lambda *_: told.append("loaded"))

    def closure() -> torch.Tensor:
        told.append("closure")
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    expected = loss_of(params).item()
    assert expected == optimizer.step(closure).item()
    optimizer.load_state_dict(optimizer.state_dict())
    assert ["before", "closure", "after", "saved", "loaded"] == told
    assert "lr: 0.0" in repr(optimizer)


def test_no_warning_is_given(kind: Kind) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(kind.make(weights(), **kind.options))
