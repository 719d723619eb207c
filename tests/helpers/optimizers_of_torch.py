"""Every optimizer of torch that a step of Neaptide can run, in each of its forms."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from torch import optim

if TYPE_CHECKING:
    from collections.abc import Callable

_ADAM: dict[str, dict[str, Any]] = {
    "": {},
    "-amsgrad": {"amsgrad": True},
    "-maximize": {"maximize": True, "lr": 1e-4},
    "-foreach": {"foreach": True},
    "-single": {"foreach": False},
    "-fused": {"fused": True},
    "-fused-amsgrad": {"fused": True, "amsgrad": True},
}

_FORMS: dict[Any, dict[str, dict[str, Any]]] = {
    optim.Adam: {**_ADAM, "-decay": {"weight_decay": 0.1}},
    optim.AdamW: _ADAM,
    optim.Adamax: {"": {}, "-foreach": {"foreach": True}},
    optim.NAdam: {"": {}, "-decoupled": {"decoupled_weight_decay": True, "foreach": True}},
    optim.RAdam: {"": {}, "-decoupled": {"decoupled_weight_decay": True, "foreach": True}},
    optim.RMSprop: {
        "": {},
        "-centered": {"centered": True},
        "-momentum": {"momentum": 0.9},
        "-all": {"momentum": 0.9, "centered": True, "foreach": True, "weight_decay": 0.01},
    },
    optim.Adagrad: {
        "": {"lr": 1e-1},
        "-initial": {"initial_accumulator_value": 0.1, "lr_decay": 0.01},
        "-foreach": {"foreach": True},
        "-fused": {"fused": True},
    },
    optim.Adadelta: {"": {"lr": 1.0}, "-foreach": {"foreach": True, "lr": 1.0}},
    optim.ASGD: {"": {"t0": 5}, "-foreach": {"foreach": True}},
    optim.Rprop: {"": {}, "-foreach": {"foreach": True}},
    optim.SGD: {
        "": {"lr": 1e-1},
        "-momentum": {"momentum": 0.9},
        "-nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
        "-dampened": {"momentum": 0.9, "dampening": 0.5, "maximize": True, "lr": 1e-4},
        "-fused": {"momentum": 0.9, "fused": True},
        "-foreach": {"momentum": 0.9, "foreach": True},
    },
    optim.Adafactor: {"": {}, "-foreach": {"foreach": True}},
    optim.Muon: {"": {}},
}

OPTIMIZERS: dict[str, Callable[[list[Any]], optim.Optimizer]] = {
    f"{cls.__name__}{form}": partial(cls, **{"lr": 1e-2, **settings})
    for cls, forms in _FORMS.items()
    for form, settings in forms.items()
}
"""By name: makes the optimizer of some parameters. Muon takes matrices alone."""
