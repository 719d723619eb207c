"""Between backward and update: what may train changes, and gradients are exchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import (
    DEVICE,
    batch_of,
    blocks_of,
    different,
    optimizer_of,
    slow_lane,
)
from zoo_blocks import linear, stacked

from neaptide import ModelError
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

PLAIN = stacked(linear)
WAYS: dict[str, dict[str, Any]] = {
    "on the host": {},
    "on the device": {"on_device": True},
    "graph": {"mode": "graph"},
    "graph, device": {"mode": "graph", "on_device": True},
}


def trained(
    way: dict[str, Any] | None,
    before: Callable[[nn.Module, int], None],
    between: Callable[[nn.Module, int], None],
    after: Callable[[nn.Module, int], None],
) -> dict[str, torch.Tensor]:
    """Train with two backwards an update; the actions come before, between and after them."""
    torch.manual_seed(0)
    model = PLAIN().to(DEVICE)
    before(model, -1)
    optimizer = optimizer_of(model)
    streaming = None
    if way is not None:
        settings = StreamingSettings(poison=True, **way)
        streaming = Streaming(model, blocks_of(model), optimizer, DEVICE, settings, lanes=slow_lane)
    for step in range(4):
        before(model, step)
        for part, action in enumerate((between, after)):
            model(batch_of(2 * step + part)).backward()
            if streaming is not None:
                streaming.gradients.flush()
            action(model, step)
        if streaming is None:
            optimizer.step()
        else:
            streaming.step()
            streaming.gradients.drop()
        optimizer.zero_grad()
    if streaming is not None:
        streaming.close()
    return {name: value.clone() for name, value in model.state_dict().items()}


def nothing(model: Any, step: int) -> None:
    """Leave all as it is."""


def freeze(model: Any, step: int) -> None:
    model.blocks[1].requires_grad_(step % 2 == 1)
    model.blocks[2].linear.bias.requires_grad_(step % 2 == 0)


def thaw(model: Any, step: int) -> None:
    for block in model.blocks:
        block.requires_grad_(False)
        next(block.parameters()).requires_grad_(True)
    if step > 0:
        model.blocks[1].requires_grad_(True)


def freeze_weights(model: Any, step: int) -> None:
    for block in model.blocks:
        block.linear.weight.requires_grad_(False)


def thaw_weights(model: Any, step: int) -> None:
    for block in model.blocks:
        block.linear.weight.requires_grad_(True)


def exchange(model: Any, step: int) -> None:
    weight, bias = model.blocks[1].linear.weight, model.blocks[2].linear.bias
    weight.grad = None if step == 1 else 2 * weight.grad
    if step == 2:
        bias.grad = None


def empty(model: Any, step: int) -> None:
    if step > 0:
        model.blocks[1].linear.weight.grad = None


CHANGES: dict[str, tuple[Any, Any, Any]] = {
    "frozen between backwards": (nothing, freeze, nothing),
    "frozen before the update": (nothing, nothing, freeze),
    "thawed later": (thaw, nothing, nothing),
    "thawed between backwards": (freeze_weights, thaw_weights, nothing),
    "gradients taken between backwards": (nothing, empty, nothing),
    "gradients exchanged": (nothing, nothing, exchange),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("change", CHANGES)
def test_the_update_is_the_resident_one(way: str, change: str) -> None:
    expected = trained(None, *CHANGES[change])
    assert [] == different(expected, trained(WAYS[way], *CHANGES[change]))


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_added_to_the_optimizer_later_is_stepped_or_told_of(way: str) -> None:
    torch.manual_seed(0)
    model = PLAIN()
    late = list(model.blocks[1].parameters())
    others = [one for one in model.parameters() if all(one is not other for other in late)]
    optimizer = torch.optim.AdamW(others, lr=1e-2)
    streaming = Streaming(
        model, blocks_of(model), optimizer, DEVICE, StreamingSettings(**WAYS[way])
    )
    optimizer.add_param_group({"params": late})
    before = late[0].clone()
    model(batch_of(0)).backward()
    streaming.gradients.flush()
    if WAYS[way].get("on_device"):
        with pytest.raises(ModelError, match=r"add_param_group.*set it before the start"):
            streaming.step()
    else:
        streaming.step()
        assert not torch.equal(before, late[0])
    streaming.close()
