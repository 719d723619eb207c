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
    found = None if places is None else _found(groups, places, parameters)
    if found is None:
        places = _PLACES[optimizer] = {
            id(one): (number, place)
            for number, group in enumerate(groups)
            for place, one in enumerate(group["params"])
        }
        found = [places[id(one)] for one in parameters if id(one) in places]
    by_group: dict[int, list[torch.Tensor]] = {}
    for number, place in sorted(set(found)):
        by_group.setdefault(number, []).append(groups[number]["params"][place])
    return by_group


def _found(
    groups: Sequence[Mapping[str, Any]],
    places: Mapping[int, tuple[int, int]],
    parameters: Sequence[torch.Tensor],
) -> list[tuple[int, int]] | None:
    """Return the places of `parameters`; None if one of them is not where it was."""
    found = []
    try:
        for one in parameters:
            number, place = places[id(one)]
            if groups[number]["params"][place] is not one:
                return None
            found.append((number, place))
    except (KeyError, IndexError):
        return None
    return found
