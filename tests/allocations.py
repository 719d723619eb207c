"""Counts what torch's CPU allocator hands out while something runs."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

from torch.profiler import ProfilerActivity, profile

if TYPE_CHECKING:
    from collections.abc import Callable


def peak_of(action: Callable[[], Any]) -> int:
    """Return the most bytes allocated at a time during `action`, beyond those before it."""
    gc.collect()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profiler:
        kept = action()
    events = profiler.profiler.kineto_results.events()  # type: ignore[union-attr]  # it has run
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    now = most = 0
    for _, change in sorted(changes, key=lambda change: change[0]):
        now += change
        most = max(most, now)
    del kept
    return most
