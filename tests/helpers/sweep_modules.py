"""Every module of torch's `module_db` with every input of it, as blocks of a small model."""

from __future__ import annotations

import copy
import random
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sweeps import UPDATES, Case, scalar_of
from torch import nn
from torch.nn.parameter import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCKS = 3
MANY = 500


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


class Alone(nn.Module):
    """Modules of one kind in a list, each called with the same inputs, scaled."""

    def __init__(self, modules: list[nn.Module]) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.9))
        self.blocks = nn.ModuleList(modules)

    def forward(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        args = [one * self.gain if _is_float(one) and n == 0 else one for n, one in enumerate(args)]
        return [block(*args, **kwargs) for block in self.blocks]


class Between(nn.Module):
    """A module between two linear layers."""

    def __init__(self, module: nn.Module, x: torch.Tensor, found: torch.Tensor) -> None:
        super().__init__()
        self.before = nn.Linear(x.shape[-1], x.shape[-1])
        self.module = module
        width = found.shape[-1] if found.ndim else 0  # a loss has no width
        self.after = nn.Linear(width, width) if width else nn.Identity()

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found = self.module(self.before(x), *args, **kwargs)
        first = found[0] if isinstance(found, tuple) else found
        return self.after(first)


class Stacked(nn.Module):
    """Blocks one after the other where shapes allow, otherwise side by side."""

    def __init__(self, blocks: list[nn.Module], *, chained: bool) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(0.9))
        self.blocks = nn.ModuleList(blocks)
        self.chained = chained

    def forward(self, args: list[Any], kwargs: dict[str, Any]) -> Any:
        x = args[0] * self.gain
        found = []
        for block in self.blocks:
            found.append(block(x, *args[1:], **kwargs))
            x = found[-1] if self.chained else x
        return found


def _loss(model: nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    return scalar_of(model(batch["args"], batch["kwargs"]))


def _made(info: Any, given: Any, *, training: bool) -> nn.Module:
    """Return the module as the database makes it, no longer lazy."""
    constructor, forward = copy.deepcopy((given.constructor_input, given.forward_input))
    module: nn.Module = info.module_cls(*constructor.args, **constructor.kwargs)
    if any(is_lazy(one) for one in module.parameters()):
        module(*forward.args, **forward.kwargs)
    return module.train(training)


def _alone(info: Any, given: Any, *, training: bool) -> nn.Module:
    return Alone([_made(info, given, training=training) for _ in range(BLOCKS)])


def _between(info: Any, given: Any, *, training: bool) -> nn.Module:
    """Return blocks of linear layers around the module; an input that fits none raises."""
    x = given.forward_input.args[0]
    modules = [_made(info, given, training=training) for _ in range(BLOCKS)]
    probe = copy.deepcopy(given.forward_input)
    found = modules[0](*probe.args, **probe.kwargs)
    first = found[0] if isinstance(found, tuple) else found
    blocks: list[nn.Module] = [Between(one, x, first) for one in modules]
    return Stacked(blocks, chained=first.shape == x.shape)


def _batches(given: Any) -> list[Any]:
    inputs = [copy.deepcopy(given.forward_input) for _ in range(UPDATES)]
    return [{"args": list(one.args), "kwargs": one.kwargs} for one in inputs]


FORMS = {"alone": _alone, "between": _between}


def _forms(number: int, inputs: int) -> dict[str, Any]:
    """Return both forms, or in turn one of them for each input of a module with very many."""
    if inputs <= MANY:
        return FORMS
    name = list(FORMS)[number % len(FORMS)]
    return {name: FORMS[name]}


def module_cases() -> Iterator[Case]:
    """Yield every module, input, mode and form."""
    from torch.testing._internal.common_modules import module_db  # it takes seconds

    for info in module_db:
        for training in (True, False) if info.train_and_eval_differ else (True,):
            torch.manual_seed(0)
            random.seed(0)
            np.random.seed(0)  # noqa: NPY002 - torch's own generator of inputs
            inputs = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=False, training=training
            )
            for number, given in enumerate(inputs):
                for form, make in _forms(number, len(inputs)).items():
                    first = next(iter(given.forward_input.args), None)
                    if form == "between" and not getattr(first, "ndim", 0):
                        continue  # a linear layer takes no scalar and no keywords
                    mode = "train" if training else "eval"
                    yield Case(
                        f"{info.name} {number} {mode} {form}",
                        partial(make, info, given, training=training),
                        partial(_batches, given),
                        _loss,
                    )
