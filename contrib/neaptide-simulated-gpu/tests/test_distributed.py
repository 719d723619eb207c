"""Process groups: two processes with a device each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import ranks

if TYPE_CHECKING:
    from pathlib import Path

FIRST, SECOND = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
SUM = [10.0, 12.0, 14.0, 16.0]

EXPECTED: dict[str, tuple[Any, Any]] = {
    "all_reduce sum": (SUM, SUM),
    "all_reduce max": (SECOND, SECOND),
    "all_reduce avg": ([5.0, 6.0, 7.0, 8.0],) * 2,
    "all_reduce bfloat16": (SUM, SUM),
    "reduce": (FIRST, SUM),
    "broadcast": (SECOND, SECOND),
    "all_gather_into_tensor": ([FIRST, SECOND],) * 2,
    "all_gather": (FIRST + SECOND,) * 2,
    "reduce_scatter_tensor": (SUM[:2], SUM[2:]),
    "reduce_scatter": (SUM[:1], SUM[1:]),
    "all_to_all_single": ([0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0]),
    "all_to_all": ([0.0, 10.0], [1.0, 2.0, 3.0, 11.0, 12.0, 13.0]),
    "gather": (FIRST + SECOND, SECOND),
    "scatter": (SECOND[:2], SECOND[2:]),
    "send and recv": (SECOND, FIRST),
    "objects": ([{"rank": 0}, {"rank": 1}],) * 2,
    "future": (SUM, SUM),
    "races": ([], []),
    "backend": ("nccl", "nccl"),
}


def test_collectives_give_the_right_numbers(tmp_path: Path) -> None:
    first, second = ranks.run("collectives", tmp_path)
    assert {name: (first[name], second[name]) for name in EXPECTED} == EXPECTED


def test_a_tensor_used_before_the_wait_is_a_race(tmp_path: Path) -> None:
    for found in ranks.run("order", tmp_path):
        for name in ("waited", "freed_early", "at_once"):
            assert found[name] == [], name
        told = {name: found[name][0] for name in ("read_early", "written_early", "other_stream")}
        assert "aten::sum" in told["read_early"]
        assert "written by all_reduce" in told["read_early"]
        assert "read_early: x.sum()" in told["read_early"]
        assert "aten::zero_" in told["written_early"]
        assert "read by all_gather" in told["written_early"]
        assert "written by all_reduce" in told["other_stream"]


def test_a_collective_takes_the_time_of_a_ring_and_starts_when_the_last_one_is_there(
    tmp_path: Path,
) -> None:
    first, second = ranks.run("clock", tmp_path)
    whole, latency = ranks.BYTES / ranks.PEER, ranks.LATENCY
    for found in (first, second):
        assert found["all_reduce"] == pytest.approx(whole + 2 * latency)
        assert found["all_gather"] == pytest.approx(whole / 2 + latency)
        assert found["reduce_scatter"] == pytest.approx(whole / 2 + latency)
        assert found["broadcast"] == pytest.approx(whole + latency)
        assert found["late"] == pytest.approx([1.0, 1.0 + whole + 2 * latency])
        assert found["barrier"] == pytest.approx(1.0 + 2 * latency)
    assert first["seconds"] == pytest.approx(1.0 + whole + 2 * latency)  # 2 ms of work fit beside


@pytest.mark.parametrize("way", ["ddp", "sharded"])
def test_training_has_the_bits_of_the_cpu(way: str, trained: list[Any]) -> None:
    for found in trained:
        assert found[f"{way} cuda"] == found[f"{way} cpu"]
        assert found["races"] == []
        assert {"all_reduce", "all_gather", "reduce_scatter"} <= set(found["operations"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return ranks.run("training", tmp_path_factory.mktemp("training"))
