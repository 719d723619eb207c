"""Lends the optimizer state of a parameter, and finds the storages that can be evicted."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from neaptide_toolkit.tensors import laid_out_as

from .storages import SMALLEST, evictable, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

    from neaptide.api.spans import Evictable, Mode

    from .evicted import Evictions


@contextmanager
def lent_entry(
    optimizer: torch.optim.Optimizer,
    parameter: nn.Parameter,
    mode: Mode,
    on: torch.device | None = None,
) -> Iterator[dict[str, Any]]:
    """Lend the optimizer's state dict of `parameter`. If `on` is a device, lend copies on `on`.

    At the end of a loan for writing, the dict replaces the optimizer's state of `parameter`. An
    empty dict is removed, so that the optimizer creates new state in the next step.
    """
    entry: dict[str, Any] = optimizer.state.get(parameter, {})
    lent = entry if mode == "write" else dict(entry)
    if on is not None:
        lent = {
            key: value.to(on) if isinstance(value, torch.Tensor) else value
            for key, value in entry.items()
        }
    yield lent
    if mode == "read":
        return
    if lent is not entry:
        for key, value in lent.items():
            before = entry.get(key)
            if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor):
                alike = (before.shape, before.dtype) == (value.shape, value.dtype)
                lent[key] = before.copy_(value) if alike else value.to(before.device)
        entry.clear()
        entry.update(lent)
    if entry:
        optimizer.state[parameter] = entry
    else:
        optimizer.state.pop(parameter, None)


def lay_out_state(optimizer: torch.optim.Optimizer) -> None:
    """Give loaded state of a weight's shape the strides of the weight, as when it was made.

    A checkpoint has no strides, and a fused step takes weight and state in the order of memory.
    """
    for parameter, entry in optimizer.state.items():
        for key, value in entry.items():
            if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                entry[key] = laid_out_as(parameter, value)


def evictable_state(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], away: Evictions
) -> Evictable:
    """Return the evictable storages of optimizer state on the same device as the parameter."""
    own = dict.fromkeys(parameters)
    tensors = [
        tensor
        for each in own
        if each in optimizer.state
        for tensor in tensors_in(optimizer.state[each])
        if tensor.device == away.home(each)
    ]
    others = tensors_in([state for each, state in optimizer.state.items() if each not in own])
    return evictable(tensors, others, SMALLEST)


def evictable_weights(parameters: Iterable[nn.Parameter]) -> Evictable:
    """Return the evictable storages of the parameters that are plain torch.Tensors."""
    return evictable(each for each in parameters if type(each.data) is torch.Tensor)
