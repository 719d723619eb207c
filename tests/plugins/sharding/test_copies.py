"""Which processes divide a copy of the model: those of a node, or so many; or why they cannot."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from neaptide import ConfigError
from neaptide_plugins.sharding.config import ShardingConfig
from neaptide_plugins.sharding.copies import ModelCopies, size_of_copy
from neaptide_toolkit.ranks.group import PeersDisagreeError, Ranks

Nodes = Sequence[tuple[str, str]]


@attrs.frozen(eq=False)
class Told(Ranks):
    """Processes of which each tells what it reads of its node; this one is the first."""

    nodes: Nodes = ()

    def exchange(self, place: str, numbers: Sequence[float]) -> list[list[float]]:
        assert place == "start"
        return [[*numbers[:2], float(one or 0), float(two or 0)] for one, two in self.nodes]


def found(nodes: Nodes, shard_size: int = 0) -> int:
    every = Told(0, len(nodes), None, nodes)
    return size_of_copy(ShardingConfig(stage="hybrid", shard_size=shard_size), every)


def of(counts: Sequence[int]) -> Nodes:
    """Return what processes read on nodes that have so many of them."""
    return [(str(count), str(place)) for count in counts for place in range(count)]


@pytest.mark.parametrize(
    ("nodes", "shard_size", "size"),
    [
        (of([2, 2]), 0, 2),
        (of([4]), 0, 4),
        (of([3, 3, 3]), 0, 3),
        (of([4]), 2, 2),
        (of([3, 1]), 2, 2),
        ([("", "")] * 6, 3, 3),
    ],
)
def test_a_copy_is_of_one_node_or_of_the_given_number(
    monkeypatch: pytest.MonkeyPatch, nodes: Nodes, shard_size: int, size: int
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", nodes[0][0])
    monkeypatch.setenv("LOCAL_RANK", nodes[0][1])
    assert found(nodes, shard_size) == size


@pytest.mark.parametrize(
    ("nodes", "shard_size", "told"),
    [
        ([("2", "0"), ("", "")], 0, "process 1 does not know how many processes its node has"),
        (of([3, 1]), 0, r"different numbers of processes \(1 and 3\); start as many on each"),
        ([("2", "0"), ("2", "0"), ("2", "1"), ("2", "1")], 0, "process 1 has place 0 on its node"),
        (of([1, 1]), 0, "with one process on each node, stage = hybrid divides nothing"),
        (of([4]), 1, "shard_size = 1 divides nothing"),
        (of([6]), 4, r"6 processes cannot be divided into groups of 4.*set one of \[2, 3, 6\]"),
        ([("4", "0"), ("4", "1")], 0, "2 processes cannot be divided into groups of 4"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, nodes: Nodes, shard_size: int, told: str
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", nodes[0][0])
    monkeypatch.setenv("LOCAL_RANK", nodes[0][1])
    with pytest.raises(ConfigError, match=told) as caught:
        found(nodes, shard_size)
    assert 1 == len(str(caught.value).splitlines())
    assert f"@ plugins.sharding.shard_size = {shard_size}" in str(caught.value)


def test_a_number_of_processes_is_for_hybrid_only() -> None:
    with pytest.raises(ValueError, match=r'is for stage = "hybrid" only \(got 2\)'):
        ShardingConfig(stage=3, shard_size=2)


def test_the_parts_of_each_copy_must_be_alike() -> None:
    copies = ModelCopies(Ranks(3, 4), Ranks(1, 2), Ranks(1, 2))
    assert copies.inside([0, 2, 3]) == [0, 1]
    assert copies.one_of("weights", [1, 2, 1, 2]) == [1, 2]
    assert len(copies.one_of("gradients", [float("nan"), 2.0] * 2)) == 2
    with pytest.raises(PeersDisagreeError, match=r"processes 1 and 3 .*weights \(2 and 5\)"):
        copies.one_of("weights", [1, 2, 1, 5])
