"""The link between processes in a dry run: the bytes that collectives send, and their time.

Collectives are rings, as gloo and NCCL have them for large tensors: of n processes, each sends
(n - 1) / n of the bytes of an all-gather or a reduce-scatter, and twice that of an all-reduce. On a
device, torch's `fully_shard` runs its collectives beside the computation, which waits where it
first reads what they made. All other collectives, and all on a CPU, make the computation wait.
"""

from __future__ import annotations

import weakref
from collections import deque
from contextlib import contextmanager
from functools import reduce
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from neaptide_toolkit.dry_run.reserved import resizable
from neaptide_toolkit.tensors import nested_tensors

from .group import ALL_GATHER, ALL_REDUCE, BROADCAST, GATHER, REDUCE_SCATTER, grouped

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide_toolkit.dry_run.allocations import AllocationLog
    from neaptide_toolkit.dry_run.clock import Clock
    from neaptide_toolkit.dry_run.unknown import Unknown
    from neaptide_toolkit.machine.profiles import Rates

    from .places import Processes
    from .rows import RowsToGather

LINK = "link"
GATHERED, HELD = "gathered weights", "buffers of collectives"
"""What memory is for: weights of all processes, and what collectives read and write."""
_OUT_OF_BUFFER = "fsdp::split_with_sizes_copy"
"""Copies the weights of a block out of the buffer into which they were gathered."""
_BESIDE = {"aten::copy_", "aten::_to_copy", "aten::add_.Tensor", _OUT_OF_BUFFER}
"""What torch does with a collective's result beside the computation."""
_AHEAD = 2
"""All-gathers that may be under way: torch starts none before the last but one has been used."""


def sent(name: str, given: Sequence[torch.Tensor], size: int, *, is_first: bool = True) -> int:
    """Return the bytes that one of `size` processes sends in a ring.

    Args:
        name: of the collective.
        given: what each process gives.
        size: how many processes there are.
        is_first: whether it is the first, which sends a broadcast, and gets a gather.
    """
    nbytes = sum(one.numel() * one.element_size() for one in given)
    parts = {
        ALL_GATHER: (size - 1) * size,
        REDUCE_SCATTER: size - 1,
        ALL_REDUCE: 2 * (size - 1),
        BROADCAST: size * is_first,
        GATHER: size * (not is_first),
    }
    return nbytes * parts[name] // size


@attrs.define(eq=False)
class _Flight:
    """What a collective brings."""

    end: Any
    used: Any = None
    """When the computation has first read it."""


class PretendedLink:
    """Counts collectives on a clock.

    Args:
        processes: those of the run.
        clock: of the dry run.
        log: names the memory of collectives.
        mode: knows which values are known.
        peer: bytes/s from one device of a node to another, of each machine of the clock; None if
            unknown.
        streams: whether a collective can run beside the computation.
        rows: knows when the rows that are gathered have come from RAM.
    """

    def __init__(
        self,
        processes: Processes,
        clock: Clock,
        log: AllocationLog,
        mode: Unknown,
        *,
        peer: Any,
        streams: bool,
        rows: RowsToGather,
    ) -> None:
        self._processes, self._clock, self._log, self._mode = processes, clock, log, mode
        self._peer, self._streams, self._rows = peer, streams, rows
        self._flights: dict[int, _Flight] = {}
        self._gathers: deque[_Flight] = deque(maxlen=_AHEAD)
        self._free: Any = 0.0

    def told(
        self,
        name: str,
        ranks: Sequence[int],
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        *,
        adds: bool = False,
        single: bool = False,
    ) -> None:
        """Note a collective; see `group.Told`. Each process gives what this one gives."""
        times, size = self._clock.as_often, len(ranks)
        nbytes = sent(name, given, size, is_first=self._processes.rank == ranks[0])
        self._clock.sent[name] += nbytes * times
        self._set(given, made, size if adds else 1)
        self._log.name([*made, *(given if name == REDUCE_SCATTER else ())], HELD)
        rate = self._processes.ring_rate(ranks, self._peer)
        seconds = (self._clock.latency() + (0.0 if rate is None else nbytes / rate)) * times
        beside = self._streams and (single or size < self._processes.count)
        flight = _Flight(self._start(name, beside=beside) + seconds)
        self._free = flight.end
        self._clock.busy[LINK] = self._clock.busy[LINK] + seconds
        if beside:
            self._bring(made, flight)
            if name == ALL_GATHER:
                self._gathers.append(flight)
        else:
            self._clock.wait(LINK, flight.end)

    def _start(self, name: str, *, beside: bool) -> Any:
        if not (beside and name == ALL_GATHER):  # it takes what was computed last
            return np.maximum(self._free, self._clock.now)
        full = len(self._gathers) == _AHEAD and self._gathers[0].used is not None
        room = self._gathers[0].used if full else 0.0
        brought = 0.0 if self._rows.brought is None else self._rows.brought.end
        earliest = (self._free, self._clock.enqueued, self._clock.started, room, brought)
        return reduce(np.maximum, earliest)

    def _set(self, given: Sequence[torch.Tensor], made: Sequence[torch.Tensor], times: int) -> None:
        """Give `made` the values that it has if all processes give the same."""
        if any(map(self._mode.is_unknown, given)):
            self._mode.forget(made)
            return
        with _disable_current_modes(), torch.no_grad():
            whole = torch.cat([one.reshape(-1) for one in given]) * times
            for one in made:
                own = whole[: one.numel()]
                one.copy_(own.repeat(one.numel() // max(1, own.numel())).view(one.shape))

    def _bring(self, made: Sequence[torch.Tensor], flight: _Flight) -> None:
        for one in made:
            storage = one.untyped_storage()
            address = storage._cdata  # noqa: SLF001 - two Python objects may stand for one storage
            if address not in self._flights:
                weakref.finalize(storage, self._flights.pop, address, None).atexit = False
            self._flights[address] = flight

    def before(self, operation: Any, given: Sequence[torch.Tensor], made: Any) -> None:
        """Let an operation wait for what it reads."""
        if operation.name() == _OUT_OF_BUFFER:
            self._log.name(nested_tensors(made), GATHERED)
        if self._flights:
            self._wait(operation, given, nested_tensors(made))

    def _wait(
        self, operation: Any, given: Sequence[torch.Tensor], results: list[torch.Tensor]
    ) -> None:
        found = [self._flights.get(one.untyped_storage()._cdata) for one in given]  # noqa: SLF001
        flights = [one for one in found if one is not None]
        if not flights:
            return
        if operation.name() in _BESIDE and len(flights) == len(found):
            last = max(flights, key=lambda one: float(np.max(one.end)))
            self._bring(results, last)
        else:
            for flight in flights:
                self._clock.wait(LINK, flight.end)
        for flight in flights:
            flight.used = self._clock.now if flight.used is None else flight.used


@contextmanager
def linked(
    processes: Processes | None,
    machines: Sequence[Rates],
    clock: Clock,
    log: AllocationLog,
    mode: Unknown,
    rows: RowsToGather,
    *,
    streams: bool,
) -> Iterator[None]:
    """Within this context, this process is one of several, if there are several.

    Args:
        processes: None for one.
        machines: the rates of those that are planned; none if they are unknown.
        clock: counts what is sent, and the time of the link.
        log: as in `PretendedLink`.
        mode: as in `PretendedLink`.
        rows: as in `PretendedLink`.
        streams: as in `PretendedLink`.
    """
    if processes is None:
        yield
        return
    # Processes on a CPU talk through the system, whose rate is not that of a device.
    known = streams and machines
    peer = np.array([one.peer for one in machines], np.float64) if known else None
    link = PretendedLink(processes, clock, log, mode, peer=peer, streams=streams, rows=rows)
    clock.before = link.before
    with resizable(), grouped(processes, link.told):
        yield
