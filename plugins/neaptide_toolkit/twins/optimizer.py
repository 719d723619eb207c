"""The outline of an optimizer: its class, its attributes, and its groups by names of parameters."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from torch import nn

from neaptide.errors import ModelError

from .outline import WAY_OUT

if TYPE_CHECKING:
    import torch

    from .outline import Outline

_APART = ("state", "param_groups", "step")
"""Attributes that are not copied. A schedule may have patched `step`."""


class OptimizerOutline:
    """An optimizer as it was, with groups of names. The new one has no state yet."""

    def __init__(self, optimizer: torch.optim.Optimizer, outline: Outline) -> None:
        self._class = type(optimizer)
        self._outline = outline
        self._attributes = {
            name: copy.copy(value) if isinstance(value, dict | list) else value
            for name, value in vars(optimizer).items()
            if name not in _APART
        }
        names = outline.names()
        self._groups = [
            {**group, "params": [names.get(id(one)) for one in group["params"]]}
            for group in optimizer.param_groups
        ]

    def made(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return a new optimizer, of the parameters of a model that the outline made.

        Raises:
            ModelError: it cannot be copied.
        """
        new = dict(model.named_parameters(remove_duplicate=False))
        memo: dict[int, Any] = {
            one: new[name] for one, name in self._outline.names().items() if name in new
        }
        optimizer = self._class.__new__(self._class)
        vars(optimizer).update(self._outline.copied(self._attributes, memo, "the optimizer"))
        named = (name for group in self._groups for name in group["params"])
        copied = (one for one in memo.values() if isinstance(one, nn.Parameter))
        own = {id(one) for one in new.values()}
        if any(name not in new for name in named) or any(id(one) not in own for one in copied):
            msg = f"the optimizer has parameters that the model has not; {WAY_OUT}"
            raise ModelError(msg)
        optimizer.state = defaultdict(dict)
        optimizer.param_groups = [
            {**_options(group, self._outline), "params": [new[name] for name in group["params"]]}
            for group in self._groups
        ]
        return optimizer


def _options(group: dict[str, Any], outline: Outline) -> dict[str, Any]:
    options: dict[str, Any] = outline.copied(
        {name: value for name, value in group.items() if name != "params"}, {}, "the optimizer"
    )
    return options
