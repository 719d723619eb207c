"""Lanes: queues of copies that run in parallel with the computation.

A lane is a stream of the device or, for CPU tensors, a thread or the caller itself. `submit`
returns a ticket, the handle of the submitted copy. Later computation and copies can wait for the
ticket on the device. The host waits only if it must read the data. Callers use the same code for a
device and for the CPU.
"""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neaptide.devices import api_of, has_streams
from neaptide.text import called
from neaptide_toolkit.machine.devices import lacks

from .host_lanes import DirectLane, ThreadLane
from .tickets import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from .tickets import Listener, Ticket


class Copies(Protocol):
    """Runs copies in the order in which they were submitted."""

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Run `work` after the tickets in `after`; `what` is the work's name in a timeline."""

    def close(self) -> None:
        """Finish the submitted work and end the lane's thread, if it has one."""


class Lane(Copies, Protocol):
    """Runs copies of tensors whose memory may be freed before the copies are done."""

    def hold(self, tensor: torch.Tensor) -> None:
        """Prevent reuse of a tensor's memory until the work submitted so far is done."""


class _Recorded:
    def __init__(self, event: Any, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        # Use the lane's device, because the current device may be another device.
        api_of(self._device).current_stream(self._device).wait_event(self._event)

    def finish(self) -> None:
        self._event.synchronize()


class StreamLane:
    """A lane on a device: one stream. On CUDA, copies from pageable memory block the host."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._api = device, api_of(device)
        self._stream = self._api.Stream(device)

    def __repr__(self) -> str:
        return called(self, str(self._device))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Enqueue `work` on the stream; see `Lane.submit`."""
        with self._api.stream(self._stream), torch.profiler.record_function(what):
            for ticket in after:
                if ticket is not None:
                    ticket.wait()
            with torch.no_grad():
                work()
            event = self._api.Event()
            event.record(self._stream)
        return _Recorded(event, self._device)

    def hold(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that the stream uses the tensor."""
        tensor.record_stream(self._stream)

    def close(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


_other: ContextVar[Callable[[str], Lane] | None] = ContextVar("lanes", default=None)


@contextmanager
def lanes_by(make: Callable[[str], Lane]) -> Iterator[None]:
    """Within this context, `lane_for` returns `make(name)`."""
    token = _other.set(make)
    try:
        yield
    finally:
        _other.reset(token)


_DIRECT = 4 << 20
"""A copy of at most so many bytes takes little longer than to hand it to a thread."""


def lane_for(
    device: torch.device,
    name: str,
    listener: Listener | None = None,
    *,
    waits: bool = False,
    largest: int | None = None,
) -> Lane:
    """Return a lane for copies to or from `device`; raise ValueError for one without streams.

    With `waits`, the host has to wait during the copies, as for a disk: they run on a thread.
    `largest` is the size of the largest copy in bytes, if it is known. Between tensors on the CPU,
    a thread copies only if it has a core of its own and the copies are large.
    """
    other = _other.get()
    if other is not None:
        return other(name)
    if device.type == "cpu":
        small = largest is not None and largest <= _DIRECT
        direct = not waits and (small or torch.get_num_threads() >= _cores())
        return DirectLane(name, listener) if direct else ThreadLane(name, listener)
    reason = lacks(device, "streams")
    if reason is not None:
        raise ValueError(reason)
    return ThreadLane(name, listener, device) if waits else StreamLane(device)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def current(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which `device`, if it has streams, is the current device."""
    context: AbstractContextManager[object] = nullcontext()
    return api_of(device).device(device) if has_streams(device) else context


def computed(device: torch.device) -> Ticket:
    """Return a ticket for all computation issued on `device` so far."""
    if not has_streams(device):
        return DONE
    event = api_of(device).Event()
    event.record(api_of(device).current_stream(device))
    return _Recorded(event, device)
