"""The host beside its main thread: disks and arithmetic in the background."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch

from simulated_gpu import _C
from simulated_gpu.streams import Event, Stream

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

Engine = Literal["disk_read", "disk_write", "host_arithmetic"]


def host_thread(name: str) -> Stream:
    """Return a stream that stands for a thread of the host beside the main one.

    It runs no kernels. It has an order and a time of its own, as every stream: events are recorded
    on it, it waits for events, and what it does to pinned memory is checked for races.
    """
    kind = torch.accelerator.current_stream().device_type
    return Stream(stream_id=_C.new_host_thread(name), device_index=0, device_type=kind)


def host_operation(
    engine: Engine,
    thread: torch.Stream,
    *,
    reads: Sequence[torch.Tensor] = (),
    writes: Sequence[torch.Tensor] = (),
    size: float | None = None,
    flops: float = 0.0,
    after: Iterable[torch.Event] = (),
    name: str | None = None,
) -> Event:
    """Put work of a host thread on its engine; return an event that is recorded at its end.

    It starts when the thread has ended its earlier work, after the events in `after`, and when the
    engine is free. It takes `size` bytes (those of `reads` and `writes` where it is None) over the
    rate `disk_read` or `disk_write`; on `host_arithmetic` the larger of `size` over
    `host_bandwidth` and `flops` over `host_flops`. The data are the caller's business: nothing is
    read or written here. Raises RuntimeError for another engine, and for tensors that are not on
    the host.
    """
    for event in after:
        thread.wait_event(event)
    _C.host_operation(
        name or engine, thread.stream_id, engine, list(reads), list(writes), size, flops
    )
    done = Event(enable_timing=True)
    done.record(thread)
    return done


@contextmanager
def on_host_thread(thread: torch.Stream, after: Iterable[torch.Event] = ()) -> Iterator[None]:
    """Be that thread of the host for a while, after some events.

    What this thread of Python then does counts there, not on the main thread: operations of torch
    on CPU tensors run on the engine `host_arithmetic`, `event.synchronize()` holds only this
    thread, and kernels are enqueued at its time.
    """
    before = _C.exchange_host_thread(thread.stream_id)
    try:
        for event in after:
            event.synchronize()
        yield
    finally:
        _C.exchange_host_thread(before)
