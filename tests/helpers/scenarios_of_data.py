"""Short runs of streaming on the device `cuda` in which other code uses weights and state."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import torch
from on_device import DEVICE
from scenarios_of_streaming import ended, stream_of, update
from streamed_net import Net
from torch._guards import TracingContext, tracing

from neaptide_plugins.layer_streaming.store import StreamedStore

if TYPE_CHECKING:
    from on_device import Result


def data_used_in_steps(mode: str) -> Result:
    """Read `.data` in a step, and write it in blocks, in backwards, after updates and at the end.

    The writes leave the values as they are, so that no copy is discarded.
    """
    torch.manual_seed(12)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True, mode=mode)
    kept: list[torch.Tensor] = []

    def write(*_: Any) -> None:
        with torch.no_grad():
            for each in kept:
                each.mul_(1.0)

    def write_later(module: Any, given: Any, returned: torch.Tensor) -> None:
        del module, given
        write()
        if returned.requires_grad:
            returned.register_hook(write)

    for block in model.blocks:
        block.up.register_forward_hook(write_later)
    losses = []
    for _ in range(2):
        losses.append(update(streaming, loss))
        kept[:] = [block.up.weight.data for block in model.blocks]
        write()
        losses.append(update(streaming, loss))
        write()
        streaming.residency.touched.end()
        kept.clear()
    losses.append(update(streaming, loss))
    read: list[torch.Tensor] = []
    other = Thread(target=lambda: read.append(model.blocks[4].down.weight.data.clone()))
    other.start()
    other.join()
    losses.append(update(streaming, loss))
    with tracing(TracingContext(None)):  # as while code is compiled
        kept[:] = [model.blocks[0].up.weight.data]
    streaming.residency.touched.end()
    kept[:] = [block.host.view(torch.float32) for block in streaming.blocks]
    write()
    kept.clear()
    return ended(streaming, model, losses)


def assigned_in_steps() -> Result:
    """Assign pinned tensors to `.data`, and bring the weights home while a copy is under way."""
    torch.manual_seed(13)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True)
    losses = [update(streaming, loss)]
    first, second = model.blocks[4].up.weight, model.blocks[0].up.weight
    given = first.data.clone().pin_memory()
    first.data = given
    losses.append(update(streaming, loss))
    streaming.residency.touched.end()
    losses.append(update(streaming, loss))
    del given
    second.data = second.data.clone()
    losses.append(update(streaming, loss))
    return ended(streaming, model, losses)


def backward_between_steps() -> Result:
    """The user's own backward, after which the user writes the weights on the host at once."""
    torch.manual_seed(14)
    model = Net()
    streaming, _, loss = stream_of(model, on_device=True, mode="graph")
    losses = [update(streaming, loss)]
    streaming.forget_copies()
    streaming.residency.fresh = lambda: True
    for _ in range(2):
        value = loss()
        value.backward()
        for block in streaming.blocks:
            block.host.view(torch.float32).mul_(1.0)
        losses.append(value.detach())
        streaming.gradients.flush()
        streaming.gradients.drop()
    return ended(streaming, model, losses)


def state_loaded_while_it_is_copied() -> Result:
    """Load a state whose tensors are those that the last update still copies to the host."""
    torch.manual_seed(15)
    model = Net().bfloat16()
    streaming, optimizer, loss = stream_of(model, on_device=True, split_master=True)
    store = StreamedStore(model, streaming, DEVICE)
    losses = [update(streaming, loss)]
    state = optimizer.state_dict()
    losses.append(update(streaming, loss))
    store.load_optimizer_state_dict(state)
    losses.append(update(streaming, loss))
    return ended(streaming, model, losses)
