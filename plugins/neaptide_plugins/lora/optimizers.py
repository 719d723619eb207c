"""Gives an optimizer other parameters to train."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch
    from torch import nn


def train_instead(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]
) -> Callable[[], None]:
    """Let `optimizer` train `parameters` in place of all it has, unless it has them already.

    Returns:
        A function that undoes it.

    Raises:
        ValueError: the optimizer has state, or groups with settings of their own.
    """
    wanted, groups = list(parameters), optimizer.param_groups
    # By weak references, because weights that are held in fewer bits have to be freed.
    before = [weakref.ref(one) for group in groups for one in group["params"]]
    if not {id(one) for one in wanted}.isdisjoint(id(one()) for one in before):
        return lambda: None
    if len(groups) != 1 or optimizer.state:
        what = "has made updates" if optimizer.state else f"has {len(groups)} groups"
        msg = (
            f"the {type(optimizer).__name__} {what} of the model's own weights, but only adapters "
            f"train; leave it out and set optimizer.name in the config, or give a new one with "
            f"one group"
        )
        raise ValueError(msg)
    (group,) = groups
    group["params"] = wanted

    def undo() -> None:
        group["params"] = [one for ref in before if (one := ref()) is not None]
        optimizer.state.clear()

    return undo
