"""Virtual time: when each operation and each copy of a dry run would end, on several machines.

Times are arrays with an element for each machine. The host enqueues one operation after the other.
The device computes them in this order. A copy runs beside them on its lane, after the copies of the
same lane and after what it waits for.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch.utils.flop_counter import flop_registry

from neaptide_toolkit.tensors import nested_tensors

from .as_cuda import attention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from neaptide_toolkit.machine.profiles import Rates

COMPUTE, HOST, DISK = "compute", "host", "disk"
_COPIES = {torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default}  # noqa: SLF001 - `to`
_READ = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001 - the operation of `Tensor.item`
_UNWRITTEN = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_like.default,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.new_empty_strided.default,
}
"""Memory alone: no kernel runs."""
_HALF = (torch.bfloat16, torch.float16)


@attrs.frozen
class Times:
    """What a count took on one machine, in seconds.

    Attributes:
        seconds: from its start to its end.
        busy: of work: of `compute`, `host`, `disk` and each lane.
        waited: in which the computation waited for a lane, by its name.
    """

    seconds: float
    busy: Mapping[str, float]
    waited: Mapping[str, float]


class _RateArrays:
    """The rates of machines: each is an array with an element for each machine."""

    def __init__(self, machines: Sequence[Rates]) -> None:
        for field in attrs.fields(type(machines[0])):
            values = np.array([getattr(one, field.name) for one in machines], np.float64)
            setattr(self, field.name, values)


class Clock:
    """Counts the time of machines with the given rates.

    Args:
        machines: the rates of each machine, at least one.
        is_on_host: returns whether a tensor is in the host's memory.
        is_on_disk: returns whether a tensor's memory is in a file.

    Attributes:
        now: the end of the last operation on the device, in seconds since the start.
        started: when the present count began.
        enqueued: when the host has enqueued the last operation.
        as_often: how many times each operation runs.
        disk_free: when the disk has done what was submitted.
        busy, waited: as in `Times`, of the present count.
        written: bytes that the present count has written to the disk.
        sent: bytes that it has sent to other processes, by collective.
        held: called with a tensor that a copy uses, and a function that returns when it ends.
        before: called with an operation, the tensors in its arguments and its results, before it is
            counted.
    """

    def __init__(
        self,
        machines: Sequence[Rates],
        is_on_host: Callable[[torch.Tensor], bool],
        is_on_disk: Callable[[torch.Tensor], bool] = lambda _: False,
    ) -> None:
        self._rates: Any = _RateArrays(machines)
        self._is_on_host, self._is_on_disk = is_on_host, is_on_disk
        start: Any = np.zeros(len(machines))
        self.now = self.disk_free = self.enqueued = self.started = start
        self.before: Callable[[Any, list[torch.Tensor], Any], None] = lambda *_: None
        self.held: Callable[[torch.Tensor, Callable[[], Any]], None] = lambda *_: None
        self.sent: Counter[str] = Counter()
        self.busy: defaultdict[str, Any] = defaultdict(lambda: start)
        self.waited: defaultdict[str, Any] = defaultdict(lambda: start)
        self.written = 0
        self._copied: int | None = None  # bytes of the copy that is being submitted
        self._on_disk: Any = 0.0  # seconds of the disk for this copy
        self.as_often = 1

    def restart(self) -> None:
        """Count from here on. Copies under way go on."""
        self.started = self.now
        self.sent.clear()
        self.busy.clear()
        self.waited.clear()
        self.written = 0

    def spent(self) -> tuple[Times, ...]:
        """Return the times of the present count, of each machine."""
        return tuple(
            Times(
                float(seconds),
                {engine: float(each[place]) for engine, each in self.busy.items()},
                {lane: float(each[place]) for lane, each in self.waited.items()},
            )
            for place, seconds in enumerate(self.now - self.started)
        )

    def ran(
        self, operation: Any, args: tuple[Any, ...], given: list[torch.Tensor], made: Any
    ) -> None:
        """Count an operation: of the device, of the host, or of a copy inside `copies`.

        `given` are the tensors in `args`. `made` is what it made or, if it returns nothing,
        what it changed.
        """
        self.before(operation, given, made)
        if operation in _UNWRITTEN:
            return
        given = given + nested_tensors(made)
        moved = sum(one.numel() * one.element_size() for one in given)
        rates = self._rates
        if self._copied is not None:
            nbytes = given[0].numel() * given[0].element_size() * self.as_often
            self._copied += nbytes
            if self._is_on_disk(given[0]):
                self._on_disk += nbytes / rates.disk_write
                self.written += nbytes
            elif any(map(self._is_on_disk, given)):
                self._on_disk += nbytes / rates.disk_read
            return
        hosts = [self._is_on_host(one) for one in given if one.ndim]
        on_both = any(hosts) and not all(hosts)
        if operation is _READ:
            if not self._is_on_host(given[0]):
                self._run(HOST, rates.copy_latency)
                self.enqueued = self.now  # the host waits for the value
        elif operation in _COPIES and on_both:
            # Memory that is not pinned goes through a buffer: half the rate, and the host waits.
            rate = (rates.to_host if self._is_on_host(made) else rates.to_device) / 2
            self._run(HOST, rates.copy_latency + made.numel() * made.element_size() / rate)
            self.enqueued = self.now
        elif hosts and all(hosts):
            self._on_host(_flops(operation, args, made), moved)
        else:
            if on_both:  # lists of tensors: an optimizer's step over all weights
                there = sum(
                    one.numel() * one.element_size()
                    for one in given
                    if one.ndim and self._is_on_host(one)
                )
                self._on_host(0.0, there)
                moved -= there
            half = any(one.dtype in _HALF for one in given)
            work = _flops(operation, args, made) / (
                rates.flops_half if half else rates.flops_single
            )
            seconds = rates.launch_device + np.maximum(work, moved / rates.bandwidth)
            self._run(COMPUTE, seconds, rates.launch_host)

    def _on_host(self, flops: float, moved: int) -> None:
        """Run an operation of the host, which waits for its end."""
        rates = self._rates
        self.enqueued = np.maximum(self.enqueued, self.now)
        self._run(HOST, np.maximum(flops / rates.host_flops, moved / rates.host_bandwidth))
        self.enqueued = self.now

    def copies(self, work: Callable[[], None]) -> tuple[int, Any]:
        """Run `work`; return the bytes that it copies, and the seconds of the disk for them."""
        outer = self._copied, self._on_disk
        self._copied, self._on_disk = 0, 0.0
        try:
            work()
            return self._copied, self._on_disk
        finally:
            self._copied, self._on_disk = outer

    def lane(self, name: str) -> ClockedLane:
        """Return a lane of this clock."""
        rates = self._rates
        return ClockedLane(self, name, rates.to_host if "host" in name else rates.to_device)

    @contextmanager
    def times(self, count: int) -> Iterator[None]:
        """Within this context, each operation takes the time of `count`."""
        before, self.as_often = self.as_often, self.as_often * count
        try:
            yield
        finally:
            self.as_often = before

    def latency(self) -> Any:
        """Return the seconds that a copy takes in addition to its bytes."""
        return self._rates.copy_latency

    def wait(self, lane: str, end: Any) -> None:
        """Let the computation wait for the end of a copy."""
        later = np.maximum(self.now, end)
        self.waited[lane] = self.waited[lane] + (later - self.now)
        self.now = later

    def _run(self, engine: str, seconds: Any, launch: Any = 0.0) -> None:
        """Run an operation, as often as `times` says, each after the host has enqueued it."""
        first, last = self.enqueued + launch, self.enqueued + launch * self.as_often
        self.enqueued = last
        self.busy[engine] = self.busy[engine] + seconds * self.as_often
        self.now = np.maximum(np.maximum(self.now, first) + seconds * self.as_often, last + seconds)


def _flops(operation: Any, args: tuple[Any, ...], made: Any) -> float:
    attended = attention.flops(operation, args)
    if attended is not None:
        return attended
    count = flop_registry.get(operation.overloadpacket)
    return 0.0 if count is None else float(count(*args, out_val=made))


@attrs.frozen(eq=False)
class CopyTicket:
    """A ticket of a copy that ends at a known time."""

    _clock: Clock
    _lane: str
    end: Any

    def wait(self) -> None:
        """Let the computation wait."""
        self._clock.wait(self._lane, self.end)

    def finish(self) -> None:
        """Let the host wait, and so what it enqueues later."""
        self.wait()
        self._clock.enqueued = np.maximum(self._clock.enqueued, self.end)


class ClockedLane:
    """A lane that runs its copies at once, and notes when they would end.

    `rate` is in bytes/s.
    """

    def __init__(self, clock: Clock, name: str, rate: Any) -> None:
        self._clock, self._name, self._rate = clock, name, rate
        self._free: Any = 0.0

    def submit(
        self,
        what: str,
        work: Callable[[], None],
        after: Iterable[Any | None] = (),
        *,
        at_once: bool = False,
    ) -> CopyTicket:
        """Run `work`; see `neaptide_toolkit.offload.lanes.Lane`.

        With `at_once` it waits for nothing that the device computes.
        """
        del what
        clock = self._clock
        ends = [one.end for one in after if isinstance(one, CopyTicket)]
        ready = np.maximum(clock.enqueued, clock.started) if at_once else clock.now
        start = reduce(np.maximum, (self._free, ready, *ends))
        with torch.no_grad():
            nbytes, on_disk = clock.copies(work)
        seconds = clock.latency() + np.maximum(nbytes / self._rate, on_disk)
        if np.any(on_disk):  # one disk serves all lanes
            start = np.maximum(start, clock.disk_free)
            clock.disk_free = start + on_disk
            clock.busy[DISK] = clock.busy[DISK] + on_disk
        self._free = start + seconds
        clock.busy[self._name] = clock.busy[self._name] + seconds
        return CopyTicket(clock, self._name, self._free)

    def hold(self, tensor: torch.Tensor) -> None:
        """Tell the clock's listener that copies use the tensor until the lane is free."""
        self._clock.held(tensor, lambda: self._free)

    def close(self) -> None:
        """Do nothing."""
