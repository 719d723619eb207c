"""The groups of some parameters of an optimizer."""

from __future__ import annotations

import torch
from torch import nn

from neaptide_plugins.layer_streaming.updates.members import members


def named(found: dict[int, list[torch.Tensor]], names: dict[int, str]) -> dict[int, list[str]]:
    return {number: [names[id(one)] for one in own] for number, own in found.items()}


def test_the_groups_are_those_of_the_moment() -> None:
    a, b, c, d = weights = [nn.Parameter(torch.zeros(2)) for _ in range(4)]
    names = {id(one): name for name, one in zip("abcd", weights, strict=True)}
    optimizer = torch.optim.SGD([{"params": [a, b]}, {"params": [c]}], lr=0.1)

    def found(*some: torch.Tensor) -> dict[int, list[str]]:
        return named(members(optimizer, some), names)

    assert found(b, a) == {0: ["a", "b"]}, "in the order of the group"
    assert found(c, d, b) == {0: ["b"], 1: ["c"]}
    optimizer.add_param_group({"params": [d]})
    assert found(c, d) == {1: ["c"], 2: ["d"]}
    optimizer.param_groups[0]["params"].reverse()
    assert found(a, b) == {0: ["b", "a"]}
    optimizer.param_groups[0]["params"].pop()
    assert found(a, b) == {0: ["b"]}
    optimizer.param_groups = [{"params": [a, c]}]
    assert found(a, b, c, d) == {0: ["a", "c"]}


def test_another_optimizer_has_its_own_groups() -> None:
    a, b = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    one, other = (torch.optim.SGD([weight], lr=0.1) for weight in (a, b))
    assert members(one, [a, b]) == {0: [a]}
    assert members(other, [a, b]) == {0: [b]}
