from __future__ import annotations

import copy
import math
import random
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import same_bits
from torch import nn, optim
from torch.optim.optimizer import register_optimizer_step_pre_hook

from neaptide_plugins.layer_streaming.layout import Layout
from neaptide_plugins.layer_streaming.split_master import split
from neaptide_plugins.layer_streaming.stepping import (
    ADOPTED,
    Item,
    adoptable,
    state_layout,
    step_away,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Options = dict[str, Any]

CONFIGURATIONS: list[tuple[type[optim.Optimizer], Options]] = [
    (optim.SGD, {}),
    (optim.SGD, {"weight_decay": 0.1, "maximize": True}),
    (optim.SGD, {"momentum": 0.9}),
    (optim.SGD, {"momentum": 0.9, "dampening": 0.1, "weight_decay": 0.1}),
    (optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    *((cls, {}) for cls in (optim.Adam, optim.AdamW, optim.NAdam, optim.RAdam, optim.Adamax)),
    *(
        (cls, {"weight_decay": 0.1, "amsgrad": True, "maximize": True, "betas": (0.8, 0.9)})
        for cls in (optim.Adam, optim.AdamW)
    ),
    (optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    (optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    (optim.Adamax, {"weight_decay": 0.1, "maximize": True}),
    (optim.Adagrad, {}),
    (optim.Adagrad, {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.3}),
    (optim.RMSprop, {}),
    (optim.RMSprop, {"momentum": 0.9, "weight_decay": 0.1}),
    (optim.RMSprop, {"momentum": 0.9, "centered": True, "maximize": True}),
    (optim.Rprop, {}),
    (optim.Rprop, {"etas": (0.4, 1.3), "step_sizes": (1e-5, 1.0), "maximize": True}),
    (optim.ASGD, {"t0": 4.0}),
    (optim.ASGD, {"lambd": 0.1, "t0": 2.0, "weight_decay": 0.1, "maximize": True}),
    (optim.Adadelta, {}),
    (optim.Adadelta, {"rho": 0.7, "weight_decay": 0.1, "maximize": True}),
    (optim.Muon, {}),
    (optim.Muon, {"momentum": 0.7, "nesterov": False, "weight_decay": 0.3}),
]
FUSED = [
    (cls, options)
    for cls, options in CONFIGURATIONS
    if cls in {optim.SGD, optim.Adam, optim.AdamW, optim.Adagrad}
]
ELEMENTWISE = [(cls, options) for cls, options in CONFIGURATIONS if cls is not optim.Muon]
MATRICES = [(4, 6), (1, 3), (7, 2), (33, 5), (2, 2), (3, 3)]
SHAPES = [(4, 6), (), (7,), (3, 2, 5), (1,), (130,)]


def names(configuration: Any) -> str:
    return configuration.__name__ if isinstance(configuration, type) else "-".join(configuration)


def shapes_for(cls: type[optim.Optimizer]) -> list[tuple[int, ...]]:
    return MATRICES if cls is optim.Muon else SHAPES


def parameters_of(
    shapes: Iterable[tuple[int, ...]], dtype: torch.dtype = torch.float32
) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(7)
    return [
        nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float32).to(dtype))
        for shape in shapes
    ]


def two_groups(parameters: list[nn.Parameter], lr: Any = 0.05) -> list[dict[str, Any]]:
    """Return two groups with learning rates of their own, the second one interleaved."""
    return [{"params": parameters[::2], "lr": lr}, {"params": parameters[1::2], "lr": lr * 0.5}]


class Away:
    """Parameters whose weights and state lie in buffers of their own, full of NaN at first."""

    def __init__(
        self,
        optimizer: optim.Optimizer,
        parameters: list[nn.Parameter],
        masters: list[torch.Tensor] | None = None,
    ) -> None:
        self.optimizer, self.parameters = optimizer, parameters
        self.weights = [parameter.detach().clone() for parameter in parameters]
        self.lows: list[torch.Tensor | None] = [None] * len(parameters)
        if masters is not None:
            pairs = [split(master) for master in masters]
            self.weights, self.lows = [hi for hi, _ in pairs], [lo for _, lo in pairs]
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        self.states = []
        for parameter, weight in zip(parameters, self.weights, strict=True):
            dtype = weight.dtype if masters is None else torch.float32
            layout = state_layout(optimizer, groups[id(parameter)], dtype)
            places = Layout.of([weight] * len(layout), list(layout.values()))
            flat = torch.full((places.bytes,), 0xFF, dtype=torch.uint8)
            self.states.append(dict(zip(layout, places.views(flat), strict=True)))

    def item(self, index: int, gradient: torch.Tensor, **changes: Any) -> Item:
        given = {"state": self.states[index], "lo": self.lows[index]} | changes
        return Item(self.parameters[index], self.weights[index], gradient, **given)

    def step(self, gradients: dict[int, torch.Tensor], pieces: random.Random) -> None:
        """Step the given parameters in a random order, a few at a time."""
        order = list(gradients)
        pieces.shuffle(order)
        while order:
            size = pieces.randint(1, len(order))
            chosen, order = order[:size], order[size:]
            step_away(self.optimizer, [self.item(i, gradients[i].clone()) for i in chosen])


def random_gradients(
    parameters: list[nn.Parameter],
    dice: random.Random,
    generator: torch.Generator,
    *,
    all_of_them: bool = False,
) -> dict[int, torch.Tensor]:
    """Return gradients of a random subset, in the parameters' dtype."""
    chosen = [i for i in range(len(parameters)) if dice.random() < 0.7 or all_of_them]
    return {
        i: torch.randn(parameters[i].shape, generator=generator).to(parameters[i].dtype)
        for i in chosen
    }


def step_resident(
    optimizer: optim.Optimizer,
    parameters: list[nn.Parameter],
    gradients: dict[int, torch.Tensor],
) -> None:
    for index, parameter in enumerate(parameters):
        parameter.grad = gradients[index].clone() if index in gradients else None
    optimizer.step()


def assert_same_state(
    expected: optim.Optimizer, actual: optim.Optimizer, away: Away | None = None
) -> None:
    """Hold the same keys in the same order, bits, dtypes and shapes, in the tensors given."""
    pairs = [
        (one, other)
        for left, right in zip(expected.param_groups, actual.param_groups, strict=True)
        for one, other in zip(left["params"], right["params"], strict=True)
    ]
    for one, other in pairs:
        assert (one in expected.state) == (other in actual.state)
        if one not in expected.state:
            continue
        assert list(expected.state[one]) == list(actual.state[other])
        for name, value in expected.state[one].items():
            kept = actual.state[other][name]
            assert same_bits(value, kept), name
            if away is not None and name in (views := away.states[place(away, other)]):
                assert kept is views[name]


def place(away: Away, parameter: torch.Tensor) -> int:
    return next(i for i, own in enumerate(away.parameters) if own is parameter)


def assert_same_weights(resident: list[nn.Parameter], away: Away) -> None:
    assert all(map(same_bits, [p.detach() for p in resident], away.weights))


def train_both(
    cls: type[optim.Optimizer],
    options: Options,
    dtype: torch.dtype = torch.float32,
    lr: Any = 0.05,
    between: Callable[[int, optim.Optimizer, optim.Optimizer], None] | None = None,
) -> tuple[list[nn.Parameter], optim.Optimizer, Away]:
    """Take 20 steps resident and away, the same ones."""
    resident, moved = parameters_of(shapes_for(cls), dtype), parameters_of(shapes_for(cls), dtype)
    ours: Any = cls
    expected = ours(two_groups(resident, copy.deepcopy(lr)), **options)
    actual = ours(two_groups(moved, copy.deepcopy(lr)), **options)
    assert adoptable(actual) is None
    away = Away(actual, moved)
    dice, pieces, generator = random.Random(1), random.Random(2), torch.Generator().manual_seed(3)
    for step in range(20):
        # Fused SGD itself takes no parameters with and without momentum together.
        first = step == 0 and "fused" in options
        gradients = random_gradients(resident, dice, generator, all_of_them=first)
        step_resident(expected, resident, gradients)
        away.step(gradients, pieces)
        if between is not None:
            between(step, expected, actual)
    assert_same_weights(resident, away)
    initial = parameters_of(shapes_for(cls), dtype)
    assert all(map(same_bits, initial, moved))  # the optimizer's own were left alone
    assert not all(map(same_bits, initial, away.weights))
    return resident, expected, away


def test_every_adopted_class_is_tried() -> None:
    assert ADOPTED == {cls for cls, _ in CONFIGURATIONS}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(("cls", "options"), ELEMENTWISE, ids=names)
def test_subsets_step_as_resident_parameters_do(
    cls: type[optim.Optimizer], options: Options, *, foreach: bool
) -> None:
    _, expected, away = train_both(cls, options | {"foreach": foreach})
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(("cls", "options"), CONFIGURATIONS, ids=names)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_every_class_steps_in_the_weights_dtype(
    cls: type[optim.Optimizer], options: Options, dtype: torch.dtype
) -> None:
    _, expected, away = train_both(cls, options, dtype)
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(("cls", "options"), FUSED, ids=names)
def test_fused_kernels_step_as_on_resident_parameters(
    cls: type[optim.Optimizer], options: Options
) -> None:
    _, expected, away = train_both(cls, options | {"fused": True})
    assert_same_state(expected, away.optimizer, away)


@pytest.mark.parametrize(
    "cls", [optim.SGD, optim.Adam, optim.AdamW, optim.Rprop, optim.RMSprop, optim.Adadelta]
)
def test_a_learning_rate_that_is_a_tensor_is_read_as_it_is(cls: type[optim.Optimizer]) -> None:
    def decay(_: int, *optimizers: optim.Optimizer) -> None:
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"].mul_(0.9)

    train_both(cls, {"foreach": False}, lr=torch.tensor(0.05), between=decay)


@pytest.mark.parametrize("cls", sorted(ADOPTED, key=lambda cls: cls.__name__), ids=names)
def test_schedulers_reach_every_step(cls: type[optim.Optimizer]) -> None:
    schedulers: dict[int, Any] = {}

    def advance(_: int, *optimizers: optim.Optimizer) -> None:
        for optimizer in optimizers:
            if id(optimizer) not in schedulers:
                schedulers[id(optimizer)] = optim.lr_scheduler.ExponentialLR(optimizer, 0.8)
            optimizer._opt_called = True  # what a scheduler's own wrapper of `step` notes
            schedulers[id(optimizer)].step()

    _, expected, away = train_both(cls, {}, between=advance)
    rates = [group["lr"] for group in away.optimizer.param_groups]
    assert [group["lr"] for group in expected.param_groups] == rates
    assert math.isclose(0.05 * 0.8**20, rates[0])


@pytest.mark.parametrize(("cls", "options"), CONFIGURATIONS, ids=names)
def test_state_may_be_saved_and_loaded_between_steps(
    cls: type[optim.Optimizer], options: Options
) -> None:
    def exchange(step: int, expected: optim.Optimizer, actual: optim.Optimizer) -> None:
        if step % 3 == 0:  # each goes on from what the other saved
            saved = copy.deepcopy([expected.state_dict(), actual.state_dict()])
            assert saved[0]["param_groups"] == saved[1]["param_groups"]
            assert saved[0]["state"].keys() == saved[1]["state"].keys()
            expected.load_state_dict(saved[1])
            actual.load_state_dict(saved[0])
        elif step % 3 == 1:
            actual.load_state_dict(actual.state_dict())

    _, expected, away = train_both(cls, options, between=exchange)
    assert_same_state(expected, away.optimizer)


@pytest.mark.parametrize("foreach", [True, False])
def test_adamw_over_a_split_master_is_float32_adamw(*, foreach: bool) -> None:
    shapes = [(5, 7), (64,), ()]
    resident = parameters_of(shapes)
    expected = optim.AdamW(resident, lr=1e-2, weight_decay=0.1, foreach=foreach)
    moved = [nn.Parameter(p.detach().bfloat16()) for p in resident]
    actual = optim.AdamW(moved, lr=1e-2, weight_decay=0.1, foreach=foreach)
    away = Away(actual, moved, masters=[p.detach() for p in resident])
    generator = torch.Generator().manual_seed(0)
    for step in range(1000):
        for optimizer in (expected, actual):
            optimizer.param_groups[0]["lr"] = 1e-2 * (1 + math.cos(step / 100)) / 2
        gradients = {
            i: torch.randn(p.shape, generator=generator).bfloat16() for i, p in enumerate(resident)
        }
        step_resident(expected, resident, {i: g.float() for i, g in gradients.items()})
        step_away(actual, [away.item(i, gradient) for i, gradient in gradients.items()])
        pairs = [split(p.detach()) for p in resident]
        assert all(map(same_bits, [hi for hi, _ in pairs], away.weights))
        assert all(map(same_bits, [lo for _, lo in pairs], away.lows))
    assert_same_state(expected, actual, away)
    assert torch.float32 == actual.state[moved[0]]["exp_avg"].dtype


@pytest.mark.parametrize(
    ("cls", "options"),
    [(cls, options) for cls, options in CONFIGURATIONS if "lr_decay" not in options],
    ids=names,
)
def test_every_class_steps_a_split_master(cls: type[optim.Optimizer], options: Options) -> None:
    ours: Any = cls
    resident = parameters_of(shapes_for(cls))
    expected = ours(two_groups(resident), **options)
    moved = [nn.Parameter(p.detach().bfloat16()) for p in resident]
    away = Away(ours(two_groups(moved), **options), moved, [p.detach() for p in resident])
    dice, pieces, generator = random.Random(1), random.Random(2), torch.Generator().manual_seed(3)
    for _ in range(10):
        gradients = random_gradients(resident, dice, generator)
        step_resident(expected, resident, gradients)
        away.step(gradients, pieces)
    pairs = [split(p.detach()) for p in resident]
    assert all(map(same_bits, [hi for hi, _ in pairs], away.weights))
    assert all(map(same_bits, [lo for _, lo in pairs], away.lows))


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
    with pytest.raises((ValueError, TypeError)):
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
    with pytest.raises(ValueError, match=r"keeps 'momentum_buffer' for a parameter of shape \(4,"):
        step_away(optimizer, [away.item(0, torch.ones(4, 6))])


def test_a_parameter_twice_in_a_step_is_refused() -> None:
    optimizer, _, away = one_adam()
    with pytest.raises(ValueError, match="twice"):
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

    parameters = parameters_of([(4, 6)])
    assert "Mine is none of torch.optim's" in str(adoptable(Mine(parameters)))
    assert "LBFGS is none of" in str(adoptable(optim.LBFGS(parameters)))
    assert "Adafactor is none of" in str(adoptable(optim.Adafactor(parameters)))
    assert "SparseAdam is none of" in str(adoptable(optim.SparseAdam(parameters)))
    differentiable = adoptable(optim.Adam(parameters, differentiable=True))
    assert "differentiable=True in parameter group 0" in str(differentiable)
    groups = [{"params": parameters}, {"params": parameters_of([(2,)]), "capturable": True}]
    assert "capturable=True in parameter group 1" in str(adoptable(optim.AdamW(groups)))
    assert adoptable(optim.AdamW(parameters, amsgrad=True, fused=True)) is None
