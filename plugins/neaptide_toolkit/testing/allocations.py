"""Count the memory that torch's CPU allocator allocates, whichever object uses it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import torch
from torch._C._autograd import _enable_profiler
from torch._C._profiler import RecordScope, _EventType
from torch.autograd.profiler import profile, record_function

from neaptide.devices import allocator_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class _Event(NamedTuple):
    """A named mark, or an allocation (bytes > 0) or free (bytes < 0)."""

    time: int
    mark: str = ""
    address: int = 0
    bytes: int = 0


@attrs.define(eq=False)
class Allocations:
    """Allocations, frees and marks, in order of time.

    The calling thread and autograd's threads are counted; other threads are not. Memory that was
    allocated before the count began is not counted, even when it is freed.
    """

    _events: list[_Event] = attrs.field(factory=list)

    @staticmethod
    def mark(name: str) -> None:
        """Set a mark at this moment; several marks may have the same name."""
        with record_function(_MARK + name):
            pass

    def at_marks(self) -> dict[str, list[int]]:
        """Return the bytes held at each mark, by name. Call it after `counted` has ended."""
        marks: dict[str, list[int]] = {}
        for event, held in self._followed():
            if event.mark:
                marks.setdefault(event.mark, []).append(held)
        return marks

    def peaks_after_marks(self) -> dict[str, int]:
        """Return, by name, the most bytes held between a mark of this name and the next mark."""
        peaks: dict[str, int] = {}
        name = ""
        for event, held in self._followed():
            name = event.mark or name
            if name:
                peaks[name] = max(peaks.get(name, 0), held)
        return peaks

    def peak(self) -> int:
        """Return the most bytes held at once. Call it after `counted` has ended."""
        return max((held for _, held in self._followed()), default=0)

    def _followed(self) -> Iterator[tuple[_Event, int]]:
        blocks: dict[int, int] = {}
        held = 0
        for event in self._events:
            if event.bytes > 0:
                blocks[event.address] = event.bytes
                held += event.bytes
            else:
                held -= blocks.pop(event.address, 0)
            yield event, held


@contextmanager
def counted() -> Iterator[Allocations]:
    """Count allocated bytes until the context ends. The results are valid after the end.

    No other torch profiler may run at the same time.
    """
    events: list[_Event] = []
    with _MemoryProfile(profile_memory=True) as profiler:
        yield Allocations(events)
    found = _events(profiler.kineto_results.experimental_event_tree())
    events.extend(sorted(found, key=lambda event: event.time))


def _events(nodes: Iterable[Any]) -> Iterator[_Event]:
    open_nodes = list(nodes)
    while open_nodes:
        node = open_nodes.pop()
        if node.tag == _EventType.Allocation:
            what = node.extra_fields
            if what.device.type == "cpu":
                yield _Event(node.start_time_ns, "", what.ptr, what.alloc_size)
            continue
        if node.name.startswith(_MARK):
            yield _Event(node.start_time_ns, node.name.removeprefix(_MARK))
        open_nodes += node.children


def peak_of(action: Callable[[], Any]) -> int:
    """Return the most bytes held at once during `action`, minus the bytes held before.

    Where there is an accelerator, its allocator counts, too: the result is the larger count.
    """
    device = torch.accelerator.current_accelerator(check_available=True)
    before = None if device is None else allocator_count(device, "memory_allocated")
    if before is not None:
        torch.get_device_module(device).reset_peak_memory_stats()
    with counted() as allocations:
        kept = action()
    # A profile hears nothing of a backward on a GPU, which has a thread of its own.
    there = 0
    if device is not None and before is not None:
        there = (allocator_count(device, "max_memory_allocated") or 0) - before
    del kept
    return max(allocations.peak(), there)


_MARK = "neaptide.mark: "


class _MemoryProfile(profile):
    """Records memory and marks only; recording operators would take thirty times as long."""

    def _start_trace(self) -> None:
        self.entered = True
        config = self.config()  # type: ignore[no-untyped-call]  # torch leaves it so
        scopes = {RecordScope.USER_SCOPE}
        _enable_profiler(config, self.kineto_activities, scopes)  # type: ignore[call-arg]  # torch's stub lacks the scopes
