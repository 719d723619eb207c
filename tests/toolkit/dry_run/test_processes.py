"""A dry run of one of several processes: what it holds, what it sends, and when it waits."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import processes_measured
import pytest
import torch
import torch.distributed as dist
from several import run_together

from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.processes.group import grouped
from neaptide_toolkit.dry_run.processes.link import LINK, sent
from neaptide_toolkit.dry_run.processes.places import Processes
from neaptide_toolkit.dry_run.running import DryRun, dry_run
from neaptide_toolkit.machine import profiles

WIDTH, LAYERS = 256, 4
DEEP: dict[str, Any] = {
    "model": {
        "name": "neaptide_toolkit.testing.kinds:deep",
        "options": {"layers": LAYERS, "width": WIDTH},
    },
    "data": {
        "name": "neaptide_toolkit.testing.kinds:sequences",
        "options": {"width": WIDTH, "length": 1},
    },
}
BLOCK = 4 * (2 * WIDTH + 2 * WIDTH * 4 * WIDTH + 5 * WIDTH)
"""Bytes of a block."""
GPT: dict[str, Any] = {  # with weights outside of blocks
    "model": {
        "name": "builtin:byte-gpt",
        "options": {"layers": 2, "width": WIDTH, "heads": 2, "context": 4},
    },
    "data": {"name": "builtin:python-stdlib", "options": {"context": 4}},
}


def given(stage: Any, model: dict[str, Any] = DEEP) -> dict[str, Any]:
    plugins = {"sharding": {"stage": stage, "check_weights": False}}
    return {**model, "train": {"batch_size": 8, "device": "cpu"}, "plugins": plugins}


def planned(stage: Any, processes: Processes, profile: str = "", **more: Any) -> DryRun:
    rates = [profiles.load(profile).rates] if profile else []
    kind = "cuda" if profile else "cpu"
    return dry_run(configured(given(stage, **more), ())[0], rates, kind, processes=processes)


SLOW = [
    pytest.param(name, stage, size, marks=pytest.mark.slow)
    for name in ("deep", "gpt")
    for stage in ("replicate", 1, 2, 3)
    for size in (2, 4)
    if (name, stage, size) not in (("deep", 1, 2), ("gpt", 3, 4))
]


@pytest.mark.skipif(sys.platform != "linux", reason="gloo and fork, as tested here")
@pytest.mark.parametrize(("name", "stage", "size"), [("deep", 1, 2), ("gpt", 3, 4), *SLOW])
def test_a_process_holds_what_is_planned_and_estimated(
    name: str, stage: Any, size: int, tmp_path: Path
) -> None:
    model = {"deep": DEEP, "gpt": GPT}[name]
    (tmp_path / "mine.json").write_text(json.dumps(given(stage, model)))
    text = Path(processes_measured.__file__).read_text(encoding="utf-8")
    done = run_together(size, ["-c", text, "mine.json"], cwd=tmp_path)
    assert [0] * size == [one.returncode for one in done], done[0].stderr
    found = [json.loads(one.stdout) for one in done]
    log = planned(stage, Processes(count=size), model=model).allocations
    peaks = {moment: peak.bytes for moment, peak in log.peaks("device").items()}
    if stage in ("replicate", 1):  # gradients are added up before the span of the update begins
        peaks["full update"] = max(peaks["full update"], peaks["full"])
    for moment in processes_measured.MOMENTS.values():
        # A thread of gloo may hold the last buffer for longer: what all hold is the least.
        held, estimated = map(min, zip(*(one[moment] for one in found), strict=True))
        assert estimated == pytest.approx(held, rel=0.05), moment
        assert peaks[f"full {moment}"] == pytest.approx(held, rel=0.05), moment


@pytest.mark.parametrize("stage", ["replicate", 1, 2, 3])
def test_the_bytes_that_are_sent_are_those_of_rings(stage: Any) -> None:
    """Each of n processes sends (n - 1) / n of what is gathered, or divided."""
    whole, size = LAYERS * BLOCK, 4
    part = whole * (size - 1) // size
    found = planned(stage, Processes(count=size)).sent
    gathered = {"replicate": 0, 1: part, 2: part, 3: 2 * part}  # 3 gathers in both passes
    scattered = 0 if stage in ("replicate", 1) else part
    added = 2 * part if stage in ("replicate", 1) else 0
    assert found["all-gather"] == pytest.approx(gathered[stage], abs=2000)
    assert found.get("reduce-scatter", 0) == scattered
    assert found.get("all-reduce", 0) == pytest.approx(added, abs=2000)


def test_large_weights_are_gathered_and_freed() -> None:
    """Tensors from 64 MiB on have memory of another kind."""
    width, layers = 4096, 3
    model = {
        "model": {**DEEP["model"], "options": {"layers": layers, "width": width}},
        "data": {**DEEP["data"], "options": {"width": width, "length": 1}},
    }
    block = 4 * (2 * width + 2 * width * 4 * width + 5 * width)
    log = planned(3, Processes(count=4), model=model).allocations
    assert log.most("device")["gathered weights"] == block
    assert log.most("device")["gradients"] == layers * block // 4


@pytest.mark.parametrize(
    ("name", "first", "expected"),
    [
        ("all-gather", True, 3 * 40),
        ("reduce-scatter", True, 30),
        ("all-reduce", True, 60),
        ("broadcast", True, 40),
        ("broadcast", False, 0),
        ("gather", True, 0),
        ("gather", False, 40),
    ],
)
def test_a_process_sends_its_part_of_a_ring(name: str, first: bool, expected: int) -> None:  # noqa: FBT001 - a case
    assert sent(name, [torch.zeros(10)], 4, is_first=first) == expected


def test_the_computation_waits_for_gradients_that_are_added_up_after_it() -> None:
    (times,) = planned("replicate", Processes(count=4, link=1e9), "a100").times
    assert times.waited[LINK] == pytest.approx(times.busy[LINK])
    assert times.seconds > times.busy[LINK] > 0.012


def test_shards_are_gathered_beside_the_computation() -> None:
    """With a slow link, a step is what the link takes, and little of it is beside anything."""
    slow = planned(3, Processes(count=4, link=1e9), "a100").times[0]
    assert slow.seconds == pytest.approx(slow.busy[LINK], rel=0.1)
    fast = planned(3, Processes(count=4, link=300e9), "a100").times[0]
    assert fast.waited[LINK] < 0.7 * fast.busy[LINK]
    assert fast.seconds < slow.seconds / 5


def test_on_a_cpu_all_collectives_are_waited_for() -> None:
    rates = [profiles.load("rtx4090").rates]
    config = configured(given(3), ())[0]
    (times,) = dry_run(config, rates, "cpu", processes=Processes(count=2, link=1e9)).times
    assert times.waited[LINK] == pytest.approx(times.busy[LINK])


def test_groups_between_nodes_share_the_link() -> None:
    places = Processes(count=8, nodes=2, link=20.0)
    assert 20.0 == places.ring_rate(range(8), 300.0)  # one ring
    assert 10.0 == places.ring_rate(range(8), 10.0)  # a device's own rate is less
    assert 5.0 == places.ring_rate([0, 4], 300.0)  # beside three others between the same nodes
    assert 300.0 == places.ring_rate(range(4), 300.0)  # inside of a node
    assert 20.0 == places.ring_rate(range(8), None)


def test_the_link_of_one_node_is_that_of_its_machine_if_none_is_given() -> None:
    assert 300.0 == Processes(count=4).ring_rate(range(4), 300.0)
    assert 7.0 == Processes(count=4, link=7.0).ring_rate(range(4), 300.0)
    assert Processes(count=4).ring_rate(range(4), None) is None


def test_a_group_of_some_processes_is_told_with_its_ranks() -> None:
    told: list[tuple[str, tuple[int, ...]]] = []

    def tell(name: str, ranks: Any, *_: Any, **__: Any) -> None:
        told.append((name, tuple(ranks)))

    with grouped(Processes(count=4), tell):
        assert (0, 4) == (dist.get_rank(), dist.get_world_size())
        dist.all_reduce(torch.zeros(2), group=dist.new_group([0, 2]))
        dist.all_reduce(torch.zeros(2))
    assert [("all-reduce", (0, 2)), ("all-reduce", (0, 1, 2, 3))] == told
    assert not dist.is_initialized()


def test_a_process_in_a_group_plans_no_other() -> None:
    def tell(*_: Any, **__: Any) -> None: ...

    with (
        grouped(Processes(count=2), tell),
        pytest.raises(ConfigError, match="in a process of its own"),
        grouped(Processes(count=4), tell),
    ):
        pass
