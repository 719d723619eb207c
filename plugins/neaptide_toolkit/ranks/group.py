"""The processes that train one model: what they tell each other, in one order.

Everything goes through torch.distributed. Each exchange of numbers begins with the place where a
process is in its run. So processes that do different things find out at their next exchange, and do
not wait for each other.
"""

from __future__ import annotations

import gc
import os
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import attrs
import torch
import torch.distributed as dist

from neaptide.devices import api_of
from neaptide.errors import ConfigError, NeaptideError

from .placing import NUMBERS, require_backend

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch.distributed import distributed_c10d as c10d

_NUMBERS = 8
"""Numbers of one exchange, its place included. All exchanges are of one size."""
_APART = "are at different places of the run"
PLACES = (
    *("start", "train", "probe", "evaluate", "update", "jump"),
    *("forward", "backward", "loan", "written", "saved", "norm", "end"),
)


class PeerLostError(NeaptideError):
    """Another process ended or does not answer. That process may tell why."""


class PeersDisagreeError(NeaptideError):
    """The processes do different things, or have different weights."""


@attrs.frozen(eq=False)
class Ranks:
    """The group of processes, and the place of this one in it.

    Attributes:
        rank: the number of this process, from 0.
        size: number of processes.
        group: torch's group of them; None for that of all processes.
    """

    rank: int
    size: int
    group: dist.ProcessGroup | None = None

    def among(self, numbers: Sequence[int], seconds: float) -> Ranks:
        """Return the group of those of all processes that have one of `numbers`, as this one has.

        They must all call this. `seconds` is the longest wait for one of them.
        """
        with _told():
            made = dist.new_group(
                [*numbers],
                timeout=timedelta(seconds=seconds),
                use_local_synchronization=True,
            )
        return Ranks(numbers.index(self.rank), len(numbers), made)

    def exchange(self, place: str, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every process, by rank. The processes must be at one place.

        Args:
            place: one of `PLACES`.
            numbers: at most 7 numbers; as float64 they keep whole numbers up to 2**53.

        Raises:
            PeersDisagreeError: another process is at another place.
            PeerLostError: another process has ended.
        """
        places, found = self.meet(place, numbers)
        self.require_one_place(places, found)
        return found

    def meet(self, place: str, numbers: Sequence[float]) -> tuple[list[str], list[list[float]]]:
        """Return the place of every process, and as many numbers of each as this one gives."""
        own = [float(PLACES.index(place)), *map(float, numbers)]
        mine = torch.zeros(_NUMBERS, dtype=torch.float64, device="cpu")
        mine[: len(own)] = torch.tensor(own, dtype=torch.float64, device="cpu")
        found = torch.empty(self.size, _NUMBERS, dtype=torch.float64, device="cpu")
        with _told():
            dist.all_gather([*found.unbind()], mine, group=self.group)
        rows: list[list[float]] = found.tolist()
        return [PLACES[int(row[0])] for row in rows], [row[1 : len(own)] for row in rows]

    def require_one_place(self, places: Sequence[str], rows: Sequence[Sequence[float]]) -> None:
        """Raise an error unless all processes are at one place.

        At "end" the first number is 1 if an error ends the process.
        """
        if len(set(places)) == 1:
            return
        if any(
            place == "end" and row[:1] == [1.0] for place, row in zip(places, rows, strict=True)
        ):
            msg = "another process of the run has failed; its own message tells why"
            raise PeerLostError(msg)
        raise _disagreement(_APART, places)

    def require_equal(self, what: str, values: Sequence[object]) -> None:
        """Raise PeersDisagreeError unless all `values`, one of each process, are equal."""
        if any(value != values[0] for value in values):
            how = f"have different {what}"
            raise _disagreement(how, values)

    def add(self, tensor: torch.Tensor) -> None:
        """Replace `tensor` by its sum over all processes. They all get the same bits."""
        with _told():
            dist.all_reduce(tensor, group=self.group)

    def gather(
        self, own: torch.Tensor, parts: list[torch.Tensor] | None, only: int | None = None
    ) -> None:
        """Copy `own`, contiguous, of every process into `parts`: in all, or `only` in one."""
        with _told():
            if only is None:
                assert parts is not None, "every process takes the parts"
                dist.all_gather([_bytes(part) for part in parts], _bytes(own), group=self.group)
            else:
                taken = parts and [_bytes(part) for part in parts]
                dist.gather(_bytes(own), taken, group=self.group, group_dst=only)

    def tell(self, data: bytes, first: int) -> bytes:
        """Return the bytes that process `first` gives, in all processes."""
        size = torch.tensor([len(data)], dtype=torch.int64, device="cpu")
        with _told():
            dist.broadcast(size, group=self.group, group_src=first)
            held = torch.empty(int(size), dtype=torch.uint8, device="cpu")
            if self.rank == first:
                held = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            dist.broadcast(held, group=self.group, group_src=first)
        return held.numpy().tobytes()

    def share_generator(self, device: torch.device) -> None:
        """Give the generator of this process's device the state of that of the first process.

        A checkpoint has the states of the first process's devices, by their numbers.
        """
        if device.type == "cpu":
            return
        api = api_of(device)
        state = api.get_rng_state(device)  # on the CPU
        with _told():
            dist.broadcast(state, group=self.group, group_src=0)
        api.set_rng_state(state, device)

    def largest(self, tensor: torch.Tensor) -> None:
        """Replace each value of `tensor` by the largest of all processes."""
        with _told():
            dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self.group)


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view that gloo can send, whatever the dtype is."""
    return tensor.view(-1).view(torch.uint8)


def _disagreement(how: str, values: Sequence[object]) -> PeersDisagreeError:
    each = ", ".join(f"{value} on process {rank}" for rank, value in enumerate(values))
    return PeersDisagreeError(
        f"the processes {how}: {each}; the same code, data and seed must run on all of them"
    )


@contextmanager
def peers_told(part: str = "gloo/transport") -> Iterator[None]:
    """Inside the context, an error of an exchange that other code makes is a PeerLostError.

    `part` is a part of its message: torch.distributed has no narrower class for errors of gloo, and
    one for those of other libraries.
    """
    try:
        yield
    except RuntimeError as error:
        if part not in str(error) and not isinstance(error, dist.DistBackendError):
            raise
        first = str(error).strip().splitlines()[0] if str(error).strip() else "no reason given"
        msg = f"another process of the run is gone ({first}); its own message tells why"
        raise PeerLostError(msg) from error


def _told() -> AbstractContextManager[None]:
    return peers_told("")


def current() -> Ranks | None:
    """Return the group that this process is in; None in a run of one process."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return None
    return Ranks(dist.get_rank(), dist.get_world_size())


def require_group(found: Ranks | None, device: torch.device) -> None:
    """Raise ConfigError if the processes that the environment tells of cannot exchange numbers."""
    size = os.environ.get("WORLD_SIZE", "1")
    if found is None and size != "1":
        msg = (
            f"WORLD_SIZE is {size}, but this process is in no group with the others; use "
            f"`neaptide run`, or call torch.distributed.init_process_group before the trainer is "
            f"made"
        )
        raise ConfigError(msg)
    if found is not None:
        require_backend(device)


@contextmanager
def group_of(
    store: c10d.Store, rank: int, size: int, seconds: float, backend: str = NUMBERS
) -> Iterator[Ranks]:
    """Form the group of `size` processes over `store`; leave it when the context ends.

    `seconds` is the longest wait for another process, and `backend` torch's name of the libraries.
    """
    dist.init_process_group(
        backend, store=store, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )
    try:
        yield Ranks(rank, size)
    finally:
        dist.destroy_process_group()
    # After an error this would wait for the threads, and they for a process that may not answer.
    _end_threads()


def _end_threads() -> None:
    """End the threads of groups that are destroyed: Python is not to end while they run.

    torch remembers what it found out about each operation of a divided tensor, and with it the
    group of its processes.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug  # noqa: PLC0415 - imported only if it was used

        clear: Any = debug._clear_sharding_prop_cache  # noqa: SLF001 - torch has no other name
        clear()
        gc.collect()
