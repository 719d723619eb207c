"""Every kind of layer as a streamed block: to the bit as resident, in pieces within rounding."""

from __future__ import annotations

from functools import cache

import pytest
from streamed import WAYS, Trace, assert_close, assert_same, train
from support import REAL_GPU
from zoo_layers import LAYERS, LOOKS_ACROSS, OTHERWISE_IN_PIECES, Residual, Stack

from neaptide import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")


def net(name: str) -> Stack:
    make, call = LAYERS[name]
    return Stack(lambda: Residual(make(), call))


@cache
def resident(name: str, kind: str) -> Trace:
    return train(lambda: net(name), None, kind)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_to_the_bit(name: str, way: str) -> None:
    if REAL_GPU and name == "lstm with dropout":  # cuDNN has a generator of its own
        with pytest.raises(ModelError, match="returned something else when recomputed"):
            train(lambda: net(name), WAYS[way])
        return
    assert_same(resident(name, "AdamW"), train(lambda: net(name), WAYS[way]))


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_to_the_bit_with_momentum(name: str) -> None:
    way = {"on_device": True, "in_backward": True, "max_active_layers": 3}
    assert_same(resident(name, "SGD"), train(lambda: net(name), way, "SGD"))


@pytest.mark.parametrize("pieces", [2, 4])
@pytest.mark.parametrize("name", sorted(LAYERS.keys() - LOOKS_ACROSS - OTHERWISE_IN_PIECES.keys()))
def test_a_layer_trains_in_pieces_within_rounding(name: str, pieces: int) -> None:
    found = train(lambda: net(name), {"micro_batches": pieces}, steps=1)
    assert_close(resident(name, "AdamW"), found)
