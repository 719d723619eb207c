"""Checks of the arguments that Python code passes to a trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from neaptide.api.phases import PHASES
from neaptide.errors import ConfigError, ModelError, suggest

if TYPE_CHECKING:
    from torch import nn

    from neaptide.api.phases import Phase


def check_trained(model: object, optimizer: object, stateful: object) -> None:
    """Raise TypeError if an argument of the trainer has the wrong type."""
    if not isinstance(model, torch.nn.Module):
        msg = f"model must be a torch.nn.Module (got {_kind(model)})"
        raise TypeError(msg)
    if not isinstance(optimizer, torch.optim.Optimizer | None):
        msg = (
            f"optimizer must be a torch.optim.Optimizer (got {_kind(optimizer)}); for one by name, "
            f"leave it out and set optimizer.name in the config"
        )
        raise TypeError(msg)
    if not isinstance(stateful, Mapping | None):
        msg = f"stateful must be a dict of objects by name (got {_kind(stateful)})"
        raise TypeError(msg)
    for name, value in (stateful or {}).items():
        if not (hasattr(value, "state_dict") and hasattr(value, "load_state_dict")):
            msg = (
                f"stateful[{name!r}] must have state_dict and load_state_dict (got {_kind(value)})"
            )
            raise TypeError(msg)


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raise ConfigError if the optimizer cannot train the model."""
    if isinstance(optimizer, torch.optim.LBFGS):
        msg = "LBFGS runs the model several times a step, which a run does not support; use AdamW"
        raise ConfigError(msg)
    named = [*model.named_parameters(), *model.named_buffers()]
    lazy = [name for name, tensor in named if torch.nn.parameter.is_lazy(tensor)]
    if lazy:
        msg = f"{lazy[0]!r} has no shape yet (a lazy module); run one batch through the model first"
        raise ConfigError(msg)
    own = set(model.parameters())
    known = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    if not known & own:
        msg = (
            "the optimizer holds none of the model's parameters; build it after moving or "
            "replacing them"
        )
        raise ConfigError(msg)


class Members:
    """The parameters of a model and its optimizer at the start of a run."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._places = [
            (f"{path}.{name}".removeprefix("."), vars(module)["_parameters"], name, parameter)
            for path, module in model.named_modules()
            for name, parameter in vars(module)["_parameters"].items()
        ]
        self._known = {id(parameter) for *_, parameter in self._places}
        self._known.update(map(id, self._given()))

    def _given(self) -> list[torch.Tensor]:
        return [one for group in self._optimizer.param_groups for one in group["params"]]

    def check(self) -> None:
        """Raise ModelError if a parameter was exchanged, or if the optimizer has a new one."""
        for path, parameters, name, parameter in self._places:
            now = parameters.get(name, parameter)
            if now is not parameter and type(now) is torch.nn.Parameter:  # no plugin's stand-in
                msg = (
                    f"parameter {path!r} is another object than at the start (load_state_dict with "
                    f"assign=True?), and the optimizer still updates the old one; copy values "
                    f"into it, or close this trainer and make a new one"
                )
                raise ModelError(msg)
        if not self._known.issuperset(map(id, self._given())):
            msg = (
                "the optimizer has a parameter that the model did not have at the start "
                "(add_param_group?); close this trainer, and make a new one"
            )
            raise ModelError(msg)


def check_resume(resume: object) -> None:
    """Raise TypeError unless `resume` is None, a string or a path."""
    if not isinstance(resume, str | os.PathLike | None):
        msg = f"resume must be 'auto' or the path of a checkpoint (got {_kind(resume)})"
        raise TypeError(msg)


def phase_named(name: str) -> Phase:
    """Return the phase `name`; raise ValueError if there is no such phase."""
    if name not in PHASES:
        msg = f"phase must be one of {', '.join(PHASES)} (got {name!r}){suggest(str(name), PHASES)}"
        raise ValueError(msg)
    return PHASES[name]


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}" if isinstance(value, str | int) else str(type(value))
