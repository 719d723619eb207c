"""A group of torch.distributed of which only this process exists.

Code that trains in several processes runs as it is: its collectives come here, with their tensors.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch.distributed as dist

from neaptide.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch

    from .places import Processes

_BACKEND = "neaptide_plan"
ALL_GATHER, REDUCE_SCATTER, ALL_REDUCE = "all-gather", "reduce-scatter", "all-reduce"
BROADCAST, GATHER = "broadcast", "gather"


class Told(Protocol):
    """Is told of each collective."""

    def __call__(
        self,
        name: str,
        ranks: Sequence[int],
        given: Sequence[torch.Tensor],
        made: Sequence[torch.Tensor],
        *,
        adds: bool = False,
        single: bool = False,
    ) -> None:
        """Note a collective of the processes `ranks`.

        Args:
            name: such as `all-gather`.
            ranks: the processes of the group.
            given: what this process gives.
            made: what it gets.
            adds: whether values are added up.
            single: whether one tensor stands for all processes.
        """


class FinishedWork:
    """The work of a collective. Who waits for it is found by the tensors that it made."""

    def wait(self, *_: Any) -> bool:
        """Return at once."""
        return True


_Base: Any = dist.ProcessGroup


class PretendedGroup(_Base):  # type: ignore[misc]  # torch's stub has forms that only C++ has
    """Some or all processes of the run."""

    def __init__(self, name: str, rank: int, ranks: Sequence[int], told: Told) -> None:
        super().__init__(rank, len(ranks))
        self._name, self._ranks, self._told, self._own = name, tuple(ranks), told, rank

    def rank(self) -> int:
        """Return the place of this process."""
        return self._own

    def size(self) -> int:
        """Return how many processes there are."""
        return len(self._ranks)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Return the name by which the group is made."""
        return _BACKEND

    @property
    def group_name(self) -> str:
        """Return the name that torch gave."""
        return self._name

    def allreduce(self, tensors: Sequence[torch.Tensor], options: Any = None) -> FinishedWork:
        """Tell of an all-reduce."""
        adds = options is None or options.reduceOp == dist.ReduceOp.SUM
        self._told(ALL_REDUCE, self._ranks, tensors, tensors, adds=adds)
        return FinishedWork()

    def allgather(
        self, made: Sequence[Sequence[torch.Tensor]], given: Sequence[torch.Tensor], _: Any = None
    ) -> FinishedWork:
        """Tell of an all-gather into a tensor for each process."""
        self._told(ALL_GATHER, self._ranks, given, made[0])
        return FinishedWork()

    def gather(
        self, made: Sequence[Sequence[torch.Tensor]], given: Sequence[torch.Tensor], _: Any = None
    ) -> FinishedWork:
        """Tell of a gather."""
        self._told(GATHER, self._ranks, given, made[0] if made else [])
        return FinishedWork()

    def broadcast(self, tensors: Sequence[torch.Tensor], _: Any = None) -> FinishedWork:
        """Tell of a broadcast."""
        self._told(BROADCAST, self._ranks, tensors, tensors)
        return FinishedWork()

    def barrier(self, *_: Any, **__: Any) -> FinishedWork:
        """Do nothing."""
        return FinishedWork()

    def all_gather_single(
        self, made: torch.Tensor, given: torch.Tensor, _: Any = None
    ) -> FinishedWork:
        """Tell of an all-gather into one tensor."""
        self._told(ALL_GATHER, self._ranks, [given], [made], single=True)
        return FinishedWork()

    def reduce_scatter_single(
        self, made: torch.Tensor, given: torch.Tensor, _: Any = None
    ) -> FinishedWork:
        """Tell of a reduce-scatter of one tensor."""
        self._told(REDUCE_SCATTER, self._ranks, [given], [made], single=True)
        return FinishedWork()

    _allgather_base = all_gather_single  # older versions of torch call them by these names
    _reduce_scatter_base = reduce_scatter_single


_now: list[Told] = []
"""Who is told of the collectives of the group that exists: one at most."""


@contextmanager
def grouped(processes: Processes, told: Told) -> Iterator[None]:
    """Within this context, this process is one of several, and `told` hears what they exchange.

    Raises:
        ConfigError: this process is in a group with others.
    """
    if dist.is_initialized():
        msg = "this process trains with others; plan several processes in a process of its own"
        raise ConfigError(msg)
    _registered()
    _now.append(told)
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch documents it
    try:
        dist.init_process_group(
            _BACKEND, store=store, rank=processes.rank, world_size=processes.count
        )
        yield
    finally:
        _now.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


@cache
def _registered() -> None:
    def made(common: Any, _: Any) -> PretendedGroup:
        ranks = common.global_ranks_in_group or range(common.group_size)
        return PretendedGroup(common.group_id, common.group_rank, ranks, _now[0])

    dist.Backend.register_backend(_BACKEND, made, extended_api=True, devices=["cpu"])
