"""A minimal program that streams blocks through fixed device slots, to test CUDA's behaviour.

A slot is a buffer on the device. A block runs inside one autograd Function. The Function's forward
makes no graph, and its backward recomputes the forward. The block's weights are stored in host
memory. Only while the block runs, its parameters are bound to a copy in a slot. The backward also
makes a step of plain SGD on the device and copies the new weights back.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

LEARNING_RATE = 0.1
# In float32 elements: 256 bytes, as for resident weights. The alignment affects which kernels run.
ALIGNMENT = 64
LONGEST_DELAY = 5_000_000  # clock cycles, a few milliseconds

Event = torch.cuda.Event | None


class Lane:
    """Ordered work on a CUDA stream, in parallel with the computation.

    On a CPU the work is done immediately.
    """

    def __init__(self, device: torch.device, delays: random.Random | None) -> None:
        self.stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.delays = delays

    def run(self, action: Callable[[], None], after: Sequence[Event]) -> Event:
        """Run `action` after the events in `after`; return an event that marks its end."""
        if self.stream is None:
            action()
            return None
        with torch.cuda.stream(self.stream):
            for event in after:
                if event is not None:
                    self.stream.wait_event(event)
            if self.delays is not None:
                delay: Callable[[int], None] = torch.cuda._sleep  # noqa: SLF001 - torch has no public function
                delay(self.delays.randrange(LONGEST_DELAY))
            action()
            end: Event = self.stream.record_event()
        return end


@dataclass(eq=False)
class Slot:
    """Device memory for one block's weights and gradients.

    The memory is filled with NaN while the slot is free.
    """

    weights: Tensor
    grads: Tensor
    free: Event = None


@dataclass(eq=False)
class StreamedBlock:
    """A block whose parameters are views of one flat host buffer.

    The gradients are views of another flat buffer.
    """

    module: nn.Module
    pin: bool
    parameters: list[nn.Parameter] = field(init=False)
    offsets: list[int] = field(init=False)
    weights: Tensor = field(init=False)
    grads: Tensor = field(init=False)
    written: Event = None

    def __post_init__(self) -> None:
        self.parameters = list(self.module.parameters())
        self.offsets, end = [], 0
        for parameter in self.parameters:
            self.offsets.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self.weights = torch.zeros(end, pin_memory=self.pin)
        self.grads = torch.zeros(end, pin_memory=self.pin)
        for parameter, view in zip(self.parameters, self.views(self.weights), strict=True):
            view.copy_(parameter.data)
            parameter.data = view

    def views(self, flat: Tensor) -> list[Tensor]:
        """Return one view of the flat buffer for each parameter."""
        return [
            flat[offset : offset + parameter.numel()].view(parameter.shape)
            for parameter, offset in zip(self.parameters, self.offsets, strict=True)
        ]

    def bind(self, flat: Tensor) -> None:
        """Make the parameters views of `flat`."""
        for parameter, view in zip(self.parameters, self.views(flat), strict=True):
            parameter.data = view

    def bind_grads(self, flat: Tensor | None) -> None:
        """Make the backward accumulate into `flat`, or into new tensors if `flat` is None."""
        views = [None] * len(self.parameters) if flat is None else self.views(flat)
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.grad = view if parameter.requires_grad else None


class Streamer:
    """Runs blocks through a few slots. While one block computes, the next one is fetched."""

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        device: torch.device,
        *,
        slots: int = 2,
        restore_rng: bool = True,
        delays: random.Random | None = None,
    ) -> None:
        self.device = device
        self.restore_rng = restore_rng
        self.blocks = [StreamedBlock(block, pin=device.type == "cuda") for block in blocks]
        largest = max(block.weights.numel() for block in self.blocks)
        room = partial(torch.full, (largest,), float("nan"), device=device)
        self.free = [Slot(room(), room()) for _ in range(slots)]
        self.loaded: dict[int, tuple[Slot, Event]] = {}
        self.incoming, self.outgoing = Lane(device, delays), Lane(device, delays)
        start = self._mark()
        for slot in self.free:
            slot.free = start

    def run(self, index: int, x: Tensor) -> Tensor:
        """Run block `index` on the device."""
        y: Tensor = _Streamed.apply(self, index, x)  # type: ignore[no-untyped-call]
        return y

    @contextmanager
    def bound(
        self, index: int, following: int, *, write_back: bool
    ) -> Iterator[tuple[StreamedBlock, Slot]]:
        """Bind a block to its weights on the device, and start to fetch the block `following`."""
        self._fetch(index)
        slot, ready = self.loaded[index]
        if ready is not None:
            torch.cuda.current_stream(self.device).wait_event(ready)
        block = self.blocks[index]
        block.bind(slot.weights)
        self._fetch(following)
        try:
            yield block, slot
        finally:
            block.bind(block.weights)
            del self.loaded[index]
            leave = partial(_leave, block, slot, write_back=write_back)
            slot.free = self.outgoing.run(leave, after=[self._mark()])
            if write_back:
                block.written = slot.free
            self.free.append(slot)

    def show_grads(self) -> None:
        """Wait for the copies, then set the parameters' gradients to the gradients on the host."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for block in self.blocks:
            block.bind_grads(block.grads)

    def _fetch(self, index: int) -> None:
        if index in self.loaded or not 0 <= index < len(self.blocks):
            return
        slot, block = self.free.pop(0), self.blocks[index]
        ready = self.incoming.run(partial(_enter, block, slot), after=[slot.free, block.written])
        self.loaded[index] = (slot, ready)

    def _mark(self) -> Event:
        if self.device.type != "cuda":
            return None
        event: Event = torch.cuda.current_stream(self.device).record_event()
        return event


def _enter(block: StreamedBlock, slot: Slot) -> None:
    slot.weights[: block.weights.numel()].copy_(block.weights, non_blocking=True)


def _leave(block: StreamedBlock, slot: Slot, *, write_back: bool) -> None:
    if write_back:
        size = block.weights.numel()
        block.weights.copy_(slot.weights[:size], non_blocking=True)
        block.grads.copy_(slot.grads[:size], non_blocking=True)
    slot.weights.fill_(float("nan"))
    slot.grads.fill_(float("nan"))


def rng_state(device: torch.device) -> Tensor:
    """Return the state of the random generator that dropout uses on `device`."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_rng_state(device: torch.device, state: Tensor) -> None:
    """Restore a state of the random generator that dropout uses on `device`."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


class _Streamed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, streamer: Streamer, index: int, x: Tensor) -> Tensor:
        ctx.streamer, ctx.index = streamer, index
        ctx.rng = rng_state(x.device)
        # Autocast caches casts by tensor, but a slot's memory is soon reused for another block.
        ctx.autocast = partial(
            torch.autocast,
            x.device.type,
            dtype=torch.get_autocast_dtype(x.device.type),
            enabled=torch.is_autocast_enabled(x.device.type),
            cache_enabled=False,
        )
        ctx.save_for_backward(x)
        with streamer.bound(index, index + 1, write_back=False) as (block, _), ctx.autocast():
            y: Tensor = block.module(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor | None]:
        streamer, index = ctx.streamer, ctx.index
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with streamer.bound(index, index - 1, write_back=True) as (block, slot):
            slot.grads.zero_()
            block.bind_grads(slot.grads)
            later = rng_state(x.device)
            if streamer.restore_rng:
                set_rng_state(x.device, ctx.rng)
            with torch.enable_grad(), ctx.autocast():
                y = block.module(x)
            set_rng_state(x.device, later)
            torch.autograd.backward(y, grad)
            update(block.module)
            block.bind_grads(None)
        return None, None, x.grad


def update(module: nn.Module) -> None:
    """Make one step of plain SGD on every parameter that has a gradient."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-LEARNING_RATE)
