"""Streaming on a device: the resident run's bits, without a race, in every way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed_net import WAYS, trained_net
from support import ROUNDS_OTHERWISE

from neaptide_plugins.layer_streaming.settings import StreamingSettings

OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "adamw": (torch.optim.AdamW, {"foreach": False}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "foreach": False}),
}


def same(way: str, optimizer: str, *, poison: bool = True, **given: Any) -> None:
    if ROUNDS_OTHERWISE and optimizer == "adamw" and "on_device" not in WAYS[way]:
        pytest.skip("AdamW steps on the CPU, which rounds otherwise than the GPU")
    kind, options = OPTIMIZERS[optimizer]
    losses, weights, _ = trained_net(None, kind, device="cuda", **given, **options)
    settings = StreamingSettings(poison=poison, **WAYS[way])
    found, streamed, streaming = trained_net(settings, kind, device="cuda", **given, **options)
    assert streaming is not None
    assert streaming.homes.unpinned is None
    assert losses == found
    assert [] == [name for name in weights if not torch.equal(weights[name], streamed[name])]


@pytest.mark.parametrize("poison", [True, False])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_losses_and_weights_are_the_resident_ones(way: str, optimizer: str, poison: bool) -> None:  # noqa: FBT001
    same(way, optimizer, poison=poison)


@pytest.mark.parametrize("way", [way for way in WAYS if "backward" not in way])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_gradients_of_several_backwards_add_up_to_the_bit(way: str, optimizer: str) -> None:
    same(way, optimizer, passes=3)


@pytest.mark.parametrize("way", [way for way in WAYS if "backward" not in way])
def test_gradients_may_be_zeroed_in_place_after_a_step(way: str) -> None:
    same(way, "adamw", set_to_none=False)
