"""Training a net streamed and resident, and what to compare."""

from __future__ import annotations

import random
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import attrs
import pytest
import torch
from support import DEVICE, ROUNDS_OTHERWISE, random_state

from neaptide_plugins.layer_streaming.outside import told_outside
from neaptide_plugins.layer_streaming.settings import StreamingSettings
from neaptide_plugins.layer_streaming.streaming import Streaming
from neaptide_toolkit.offload import ThreadLane, lane_for
from neaptide_toolkit.recompute import find_blocks
from neaptide_toolkit.testing.parting import partings, same_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import nn

    from neaptide_toolkit.offload import Lane, Ticket

WAYS: dict[str, dict[str, Any]] = {
    "on the host": {},
    "on the device": {"on_device": True, "max_active_layers": 3, "prefetch_distance": 2},
    "in backward": {"on_device": True, "in_backward": True},
}


class Sleepy(ThreadLane):
    """Takes its time, another one for each copy."""

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Queue `work`, a little later."""
        pause = _pauses.random() * 1e-3

        def later() -> None:
            time.sleep(pause)
            work()

        return super().submit(what, later, after)


_pauses = random.Random(0)


def slow_lane(device: torch.device, name: str) -> Lane:
    """Return a lane whose copies end late: on a GPU they do by themselves."""
    return Sleepy(name) if device.type == "cpu" else lane_for(device, name)


@attrs.define
class Trace:
    """What a run has left."""

    losses: list[torch.Tensor] = attrs.field(factory=list)
    gradients: list[dict[str, torch.Tensor]] = attrs.field(factory=list)
    state: dict[str, torch.Tensor] = attrs.field(factory=dict)
    rng_state: torch.Tensor = attrs.field(factory=lambda: torch.zeros(()))


def batch_of(seed: int) -> torch.Tensor:
    return torch.randn(6, 5, 8, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def blocks_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    return find_blocks(model, getattr(model, "pattern", None))


def optimizer_of(model: nn.Module, kind: str = "AdamW") -> torch.optim.Optimizer:
    """Return an optimizer; on a real GPU always one that a CPU computes to the bit, too."""
    if kind == "SGD" or ROUNDS_OTHERWISE:
        lr = 1e-2 if kind == "SGD" else 1e-4  # some nets diverge by 1e-2
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    return getattr(torch.optim, kind)(model.parameters(), lr=1e-2, amsgrad=True)


def train(
    make: Callable[[], nn.Module],
    way: dict[str, Any] | None,
    kind: str = "AdamW",
    steps: int = 3,
    call: Callable[[nn.Module, int], torch.Tensor] = lambda model, step: model(batch_of(step)),
) -> Trace:
    """Train; `way` holds the settings of streaming, None trains resident."""
    torch.manual_seed(0)
    random.seed(0)
    model = make().to(DEVICE)
    optimizer = optimizer_of(model, kind)
    streaming = None
    if way is not None:
        settings = StreamingSettings(poison=True, **way)
        streaming = Streaming(
            model,
            blocks_of(model),
            optimizer,
            DEVICE,
            settings,
            lanes=slow_lane,
        )
    trace = Trace()
    try:
        for step in range(steps):
            with nullcontext() if streaming is None else told_outside(streaming.blocks):
                loss = call(model, step)
            loss.backward()
            trace.losses.append(loss.detach().clone())
            if streaming is not None:
                streaming.gradients.flush()
            if streaming is None or streaming.applying is None:
                trace.gradients.append(gradients_of(model))
            if streaming is None:
                optimizer.step()
            else:
                streaming.step()
                streaming.gradients.drop()
            optimizer.zero_grad()
        if streaming is not None:
            assert_idle(streaming)
    finally:
        if streaming is not None:
            streaming.close()
    trace.state = {name: value.clone() for name, value in model.state_dict().items()}
    trace.rng_state = random_state()
    return trace


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.cpu().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def assert_idle(streaming: Streaming) -> None:
    """Nothing is in use, and every slot is free or holds a block."""
    residency = streaming.residency
    assert {0} == {block.users for block in residency.blocks}
    held = [block.slot for block in residency.blocks if block.slot in residency.slots]
    assert len(residency.slots) == len(residency._free) + len(held)
    for block in residency.blocks:
        for parameter, view in zip(block.parameters, block.views, strict=True):
            assert parameter.data_ptr() == view.data_ptr()


def assert_same(expected: Trace, found: Trace) -> None:
    """To the bit: losses, gradients where they are stored, weights, buffers, random state."""
    assert all(map(same_bits, expected.losses, found.losses)), (expected.losses, found.losses)
    for one, other in zip(expected.gradients, found.gradients, strict=False):
        assert [] == different(one, other)
    assert [] == different(expected.state, found.state)
    assert torch.equal(expected.rng_state, found.rng_state)


def different(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of tensors that are not of the same bits, or only on one side."""
    return sorted(parting.name for parting in partings(one, other))


def assert_close(expected: Trace, found: Trace, tolerance: float = 1e-6) -> None:
    """Losses and gradients of the first step, relative to the largest element of each."""
    torch.testing.assert_close(found.losses[0], expected.losses[0], rtol=tolerance, atol=0)
    one, other = expected.gradients[0], found.gradients[0]
    assert one.keys() == other.keys()
    scale = max(float(gradient.abs().max()) for gradient in one.values() if gradient.numel())
    for name in one:
        size = float(one[name].abs().max()) if one[name].numel() else 0.0
        error = float((one[name] - other[name]).abs().max()) if one[name].numel() else 0.0
        assert error <= tolerance * max(size, 1e-2 * scale), (name, error, size)


def refusal(make: Any, **settings: Any) -> str:
    """Return the one line that training ends with."""
    with pytest.raises((RuntimeError, ValueError)) as caught:
        train(make, settings)
    line = str(caught.value)
    assert "\n" not in line
    return line
