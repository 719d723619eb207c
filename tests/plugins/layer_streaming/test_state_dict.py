"""What `state_dict` returns between two steps is the newest, wherever the weights are updated."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from streamed import DEVICE, blocks_of, different, optimizer_of
from torch import nn

from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_toolkit.offload import ThreadLane, lane_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from neaptide_toolkit.offload import Lane, Ticket


class Late(ThreadLane):
    """Copies a good while after it was asked to."""

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Queue `work`, later."""

        def later() -> None:
            time.sleep(5e-3)
            work()

        return super().submit(what, later, after)


def late_lane(device: torch.device, name: str) -> Lane:
    """Return a lane whose copies end late: on a GPU they do by themselves."""
    return Late(name) if device.type == "cpu" else lane_for(device, name)


def make() -> nn.Module:
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(4)])


def copies(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in values.items()}


def states(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = optimizer.state_dict()["state"]
    return {f"{i} {key}": value.clone() for i, held in found.items() for key, value in held.items()}


def trained(way: dict[str, Any] | None, *, of: str) -> list[dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().to(DEVICE)
    optimizer = optimizer_of(model)
    streaming = None
    if way is not None:
        streaming = Streaming(
            model,
            blocks_of(model),
            optimizer,
            DEVICE,
            StreamingSettings(**way),
            lanes=late_lane,
        )
    found = []
    for step in range(3):
        model(torch.full((2, 8), 1.0 + step, device=DEVICE)).square().mean().backward()
        if streaming is None:
            optimizer.step()
        else:
            streaming.gradients.flush()
            streaming.step()
            streaming.gradients.drop()
        optimizer.zero_grad()
        if of == "optimizer":
            found.append(states(optimizer))
        elif of == "block":
            found.append(copies(model[3].state_dict()))
        else:
            found.append(copies(model.state_dict()))
    if streaming is not None:
        copied = copy.deepcopy(model)
        streaming.close()
        assert not model._state_dict_pre_hooks
        assert [] == different(dict(model.state_dict()), dict(copied.state_dict()))
    return found


@pytest.mark.parametrize("of", ["model", "block", "optimizer"])
@pytest.mark.parametrize(
    "way", [{"on_device": True}, {"on_device": True, "in_backward": True}], ids=["after", "in"]
)
def test_it_is_the_newest(way: dict[str, Any], of: str) -> None:
    for expected, found in zip(trained(None, of=of), trained(way, of=of), strict=True):
        assert [] == different(expected, found)
