"""A block that returns something else the second time is refused; samples of it tell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from streamed import (
    DEVICE,
    batch_of,
    blocks_of,
    optimizer_of,
    refusal,
    train,
)
from zoo_blocks import linear, stacked
from zoo_layers import WIDTH

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming


def test_a_hidden_rng_is_refused() -> None:
    generator = torch.Generator()
    line = refusal(stacked(lambda b, x: b.linear(x) * torch.rand(WIDTH, generator=generator).to(x)))
    assert "block 'blocks.3' returned something else when recomputed" in line


def test_an_rng_of_its_own_that_begins_late_is_refused() -> None:
    generator = torch.Generator()

    def late(block: Any, x: torch.Tensor) -> torch.Tensor:
        block.seen += 1
        noise = torch.rand(WIDTH, generator=generator).to(x) if block.seen > 3 else 1
        return x + block.linear(x) * noise

    make = stacked(late, seen=lambda: torch.zeros(()))
    with pytest.raises(RuntimeError, match="returned something else when recomputed"):
        train(make, {}, steps=10)


def test_outputs_that_wait_for_the_check_are_not_held_where_inputs_leave() -> None:
    """A step's checks take no more of the device than the steps after them."""
    torch.manual_seed(0)
    model = stacked(linear)()
    chosen = StreamingSettings(inputs_on_host=True)
    streaming = Streaming(model, blocks_of(model), optimizer_of(model), DEVICE, chosen)
    big = batch_of(0).repeat(400, 1, 1)
    loss = model(big)
    calls = [call for unit in streaming.units for call in unit.calls]
    held = [sample.numel() for call in calls for sample in call.watched]
    assert held
    assert max(held) <= 4096 < big.numel()
    loss.backward()
    streaming.close()
