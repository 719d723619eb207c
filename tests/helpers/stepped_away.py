"""Parameters stepped where their optimizer's tensors do not lie, beside resident ones."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import torch
from torch import nn, optim

from neaptide_kernels.adamw_split.split_master import split
from neaptide_plugins.layer_streaming.updates.stepping import (
    Item,
    adoptable,
    state_layout,
    step_away,
)
from neaptide_toolkit.offload import BufferLayout
from neaptide_toolkit.testing.parting import same_bits

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
            places = BufferLayout.of([weight] * len(layout), list(layout.values()))
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
