"""Copies of the model: some of the processes divide one among them, and others divide another.

The processes of a copy have numbers that follow each other, as those of a node have.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, TypeVar

import attrs
import torch

from neaptide.errors import ConfigError
from neaptide_toolkit.ranks.group import PeersDisagreeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from neaptide_toolkit.ranks.group import Ranks

    from .config import ShardingConfig

T = TypeVar("T")
_NODE = "LOCAL_WORLD_SIZE", "LOCAL_RANK"


@attrs.frozen(eq=False)
class ModelCopies:
    """All processes of a run, by the copy of the model that they have a part of.

    Attributes:
        every: all processes.
        shards: those that have the parts of this process's copy.
        alike: those that have the part that this one has, of each copy; None if there is one copy.
    """

    every: Ranks
    shards: Ranks
    alike: Ranks | None

    @classmethod
    def of(cls, config: ShardingConfig, every: Ranks) -> ModelCopies:
        """Return the copies that the settings ask for; ConfigError if there cannot be such."""
        size, seconds = size_of_copy(config, every), config.timeout
        if size == every.size:
            return cls(every, every, None)
        place = every.rank % size
        first = every.rank - place
        return cls(
            every,
            every.among(range(first, first + size), seconds),
            every.among(range(place, every.size, size), seconds),
        )

    def mesh(self, kind: str) -> DeviceMesh:
        """Return the processes as `fully_shard` takes them, on devices of a kind."""
        # Most runs of the plugin do not need it, and its import takes time.
        from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: PLC0415

        if self.alike is None:
            return init_device_mesh(kind, (self.every.size,))
        places = torch.arange(self.every.size, device="cpu").view(-1, self.shards.size)
        groups = [one.group for one in (self.alike, self.shards) if one.group is not None]
        return DeviceMesh.from_group(groups, kind, places, mesh_dim_names=("copy", "part"))

    def inside(self, numbers: Sequence[int]) -> list[int]:
        """Return which of `numbers` are processes of this one's copy, by their places in it."""
        size = self.shards.size
        own = self.every.rank // size
        return [number % size for number in numbers if number // size == own]

    def one_of(self, what: str, values: Sequence[T]) -> Sequence[T]:
        """Return the values of the processes of one copy; those of the others must be equal.

        Raises:
            PeersDisagreeError: two processes that have the same part have different values.
        """
        size = self.shards.size
        for rank, value in enumerate(values):
            first = values[rank % size]
            if repr(value) != repr(first):  # not a number is equal to itself
                msg = (
                    f"processes {rank % size} and {rank} have the same part of the model, and "
                    f"different {what} ({first} and {value}); the same code, data and seed must "
                    f"run on all of them"
                )
                raise PeersDisagreeError(msg)
        return values[:size]


def size_of_copy(config: ShardingConfig, every: Ranks) -> int:
    """Return how many processes divide one copy of the model among them.

    Raises:
        ConfigError: the processes cannot be divided as `stage` and `shard_size` say.
    """
    given, hybrid = config.shard_size, config.stage == "hybrid"
    count, place = _node() if hybrid and not given else (0, 0)
    found = every.exchange("start", [hybrid, given, count, place])
    modes = [(bool(mode), int(size)) for mode, size, _, _ in found]
    every.require_equal("settings of stage and shard_size", modes)
    if not hybrid:
        return every.size
    size, way_out = given, f"@ plugins.sharding.shard_size = {given}"
    if not given:
        _check_nodes([(int(count), int(place)) for _, _, count, place in found], way_out)
        size = count
    if size == 1:
        where = "shard_size = 1" if given else "with one process on each node, stage = hybrid"
        msg = f'{where} divides nothing; set stage = 3, or stage = "replicate" {way_out}'
        raise ConfigError(msg)
    if every.size % size:
        fitting = [one for one in range(2, every.size + 1) if not every.size % one]
        msg = (
            f"{every.size} processes cannot be divided into groups of {size}, of which each has "
            f"the model; set one of {json.dumps(fitting)} {way_out}"
        )
        raise ConfigError(msg)
    return size


def _node() -> tuple[int, int]:
    """Return how many processes this node has, and the place of this one; zeros if not known."""
    count, place = (os.environ.get(name, "") for name in _NODE)
    return (int(count), int(place)) if count.isdecimal() and place.isdecimal() else (0, 0)


def _check_nodes(found: Sequence[tuple[int, int]], way_out: str) -> None:
    """Raise ConfigError unless all nodes have as many processes, whose numbers follow each other.

    Args:
        found: of each process, how many its node has, and its place among them.
        way_out: the end of a message.
    """
    counts = [count for count, _ in found]
    problem = ""
    if unknown := [rank for rank, count in enumerate(counts) if not count]:
        problem = (
            f"process {unknown[0]} does not know how many processes its node has "
            f"({' and '.join(_NODE)}); start with torchrun or srun"
        )
    elif len(set(counts)) > 1:
        problem = (
            f"the nodes have different numbers of processes ({min(counts)} and {max(counts)}); "
            f"start as many on each"
        )
    elif strangers := [rank for rank, (count, place) in enumerate(found) if rank % count != place]:
        problem = (
            f"process {strangers[0]} has place {found[strangers[0]][1]} on its node, so the "
            f"numbers of a node's processes do not follow each other; start with srun -m block"
        )
    if problem:
        msg = f"{problem}, or set the number of processes that divide the model {way_out}"
        raise ConfigError(msg)
