"""Recurrent layers, whose cells have kernels on CUDA only, agree with the CPU's."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True),
    "lstm without biases": lambda: nn.LSTM(6, 5, bias=False),
    "lstm projected": lambda: nn.LSTM(6, 5, proj_size=3),
    "gru": lambda: nn.GRU(6, 5, 2, batch_first=True),
    "gru without biases": lambda: nn.GRU(6, 5, bias=False),
    "rnn": lambda: nn.RNN(6, 5),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_and_its_gradients_are_the_cpus(name: str) -> None:
    torch.manual_seed(0)
    layer = LAYERS[name]()
    x = torch.randn(4, 3, 6)
    found = []
    for device in ("cpu", "cuda"):
        own, given = copy.deepcopy(layer).to(device), x.detach().to(device).requires_grad_()
        y = own(given)[0]
        y.square().sum().backward()
        gradients = [given.grad, *(each.grad for each in own.parameters())]
        found.append([each.detach().cpu() for each in (y, *gradients)])
    torch.testing.assert_close(found[1], found[0])
