"""Whole nets, their blocks in rows, branches, loops and ties: to the bit as resident ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import awkward_nets
import pytest
from streamed import WAYS, assert_same, batch_of, train
from zoo_nets import NETS

if TYPE_CHECKING:
    import torch
    from torch import nn


@pytest.mark.parametrize("name", NETS)
def test_a_net_trains_to_the_bit(name: str) -> None:
    resident = train(NETS[name], None)
    for way in WAYS.values():
        assert_same(resident, train(NETS[name], way))


def awkward(model: nn.Module, step: int) -> torch.Tensor:
    return model(batch_of(step)[:, 0])


@pytest.mark.parametrize("name", awkward_nets.NETS)
def test_an_awkward_net_trains_to_the_bit(name: str) -> None:
    make: Any = awkward_nets.NETS[name]
    resident = train(make, None, call=awkward)
    for way in WAYS.values():
        assert_same(resident, train(make, way, call=awkward))
