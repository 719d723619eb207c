"""Lanes on which copies run beside the computation: CUDA streams, or a thread each on a CPU.

A ticket is what a submitted copy leaves: what is computed later waits for it, and so do other
copies; the host waits only where it must read. The same code runs on both kinds of machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TYPE_CHECKING, Protocol

import torch

from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Iterable
    from concurrent.futures import Future
    from contextlib import AbstractContextManager

Listener = Callable[[str, str, float, float], None]
"""`listener(lane, what, start, end)`: times of `time.perf_counter`."""


class Ticket(Protocol):
    """Work that is under way."""

    def wait(self) -> None:
        """Hold back what is computed from here on until the work is done."""

    def finish(self) -> None:
        """Block the host until the work is done; raises what it raised."""


class Lane(Protocol):
    """Runs copies in the order they were submitted."""

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Run `work` once the tickets in `after` are done; `what` names it in a timeline."""

    def hold(self, tensor: torch.Tensor) -> None:
        """Keep a tensor's memory from being given to others until the lane has passed by."""

    def close(self) -> None:
        """Finish what is under way and let go of threads."""


class Done:
    """A ticket of work that is over."""

    def __repr__(self) -> str:
        return called(self)

    def wait(self) -> None:
        """Return at once."""

    def finish(self) -> None:
        """Return at once."""


DONE = Done()


class _Submitted:
    def __init__(self, future: Future[None]) -> None:
        self._future = future

    def wait(self) -> None:
        self._future.result()

    def finish(self) -> None:
        self._future.result()


class ThreadLane:
    """A lane for CPU tensors: one thread, so that the order is kept."""

    def __init__(self, name: str, listener: Listener | None = None) -> None:
        self._name, self._listener = name, listener
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=f"neaptide-{name}")

    def __repr__(self) -> str:
        return called(self, repr(self._name))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Queue `work`."""
        tickets = [ticket for ticket in after if ticket is not None]
        # Taken out, it is forgotten before the ticket is done, and with it the memory it refers to.
        waiting = [work]

        def run() -> None:
            for ticket in tickets:
                ticket.finish()
            start = time.perf_counter()
            with torch.no_grad():
                waiting.pop()()
            if self._listener is not None:
                self._listener(self._name, what, start, time.perf_counter())

        return _Submitted(self._pool.submit(run))

    def hold(self, tensor: torch.Tensor) -> None:
        """Do nothing: what the work refers to stays until it is done."""

    def close(self) -> None:
        """Wait for the queue."""
        self._pool.shutdown()


class _Recorded:
    def __init__(self, event: torch.cuda.Event, device: torch.device) -> None:
        self._event, self._device = event, device

    def wait(self) -> None:
        # The lane's device: another one may be the current device.
        torch.cuda.current_stream(self._device).wait_event(self._event)

    def finish(self) -> None:
        self._event.synchronize()


class StreamLane:
    """A lane on a CUDA device: one stream; copies from pageable memory hold up the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # as above

    def __repr__(self) -> str:
        return called(self, str(self._device))

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Enqueue `work` on the stream."""
        with torch.cuda.stream(self._stream), torch.profiler.record_function(what):
            for ticket in after:
                if ticket is not None:
                    ticket.wait()
            with torch.no_grad():
                work()
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record(self._stream)
        return _Recorded(event, self._device)

    def hold(self, tensor: torch.Tensor) -> None:
        """Tell the allocator that the stream reads it."""
        tensor.record_stream(self._stream)

    def close(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()


def lane_for(device: torch.device, name: str, listener: Listener | None = None) -> Lane:
    """Return a lane for copies to or from `device`."""
    return StreamLane(device) if device.type == "cuda" else ThreadLane(name, listener)


def current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current device meanwhile."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def computed(device: torch.device) -> Ticket:
    """Return a ticket for everything that has been asked of `device` so far."""
    if device.type != "cuda":
        return DONE
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
    event.record(torch.cuda.current_stream(device))
    return _Recorded(event, device)
