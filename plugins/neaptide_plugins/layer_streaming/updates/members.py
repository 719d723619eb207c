"""Finds the parameter groups of some parameters without a look at all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from torch import optim

_PLACES: WeakKeyDictionary[optim.Optimizer, dict[int, tuple[int, int]]] = WeakKeyDictionary()
"""For each optimizer: the group of a parameter and its place there, by the parameter's identity."""


def members(
    optimizer: optim.Optimizer, parameters: Sequence[torch.Tensor]
) -> dict[int, list[torch.Tensor]]:
    """Return, by the number of a group, those of `parameters` that are in it, in its order.

    A parameter that is in no group is left out. The time does not depend on the other parameters,
    unless the groups have changed since the last call, or a parameter is in none.
    """
    groups = optimizer.param_groups
    places = _PLACES.get(optimizer)
    if places is None or not _are_there(groups, places, parameters):
        places = _PLACES[optimizer] = {
            id(one): (number, place)
            for number, group in enumerate(groups)
            for place, one in enumerate(group["params"])
        }
    found = sorted({places[id(one)] for one in parameters if id(one) in places})
    by_group: dict[int, list[torch.Tensor]] = {}
    for number, place in found:
        by_group.setdefault(number, []).append(groups[number]["params"][place])
    return by_group


def _are_there(
    groups: Sequence[Mapping[str, Any]],
    places: Mapping[int, tuple[int, int]],
    parameters: Sequence[torch.Tensor],
) -> bool:
    try:
        for one in parameters:
            number, place = places[id(one)]
            if groups[number]["params"][place] is not one:
                return False
    except (KeyError, IndexError):
        return False
    return True
