"""Memory snapshots: what is listed, when, and how many."""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support import DEVICE, tiny_trainer, touched
from torch._subclasses.fake_tensor import FakeTensorMode

from neaptide.io.folder import Folder
from neaptide_plugins.profiler import SPEC
from neaptide_plugins.profiler.snapshot import AllocationHistory, Snapshots

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")


def test_a_snapshot_is_json_that_adds_up(tmp_path: Path) -> None:
    snapshots = Snapshots(Folder(tmp_path), CPU, 1)
    name = snapshots.take(12, "full", "step", "snapshot_at", 10**9)
    assert "snapshot-00000012-full-step.json" == name
    content = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert (12, "full", "step", "snapshot_at", 10**9) == tuple(
        content[key] for key in ("step", "phase", "moment", "reason", "rss_bytes")
    )
    listed = sum(sum(by.values()) for by in content["listed_bytes"].values())
    sizes = [entry["bytes"] for entry in content["tensors"]]
    assert listed == sum(sizes)
    assert sorted(sizes, reverse=True) == sizes
    assert [name] == snapshots.written


def test_a_snapshot_says_in_a_line_what_it_leaves_out(tmp_path: Path) -> None:
    with FakeTensorMode():
        held = torch.zeros(7, 11, 13)
    name = Snapshots(Folder(tmp_path), CPU, 1).take(1, "full", "step", "request", 0)
    assert held.shape == (7, 11, 13)
    assert name is not None
    said = json.loads((tmp_path / name).read_text(encoding="utf-8"))["left_out"]
    assert re.match(r"tensors without visible memory: .*\d+ FakeTensor", said)


def test_there_are_no_more_than_allowed(tmp_path: Path) -> None:
    snapshots = Snapshots(Folder(tmp_path), CPU, 2)
    taken = [snapshots.take(step, "full", "step", "request", 0) for step in range(1, 5)]
    assert [False, False, True, True] == [name is None for name in taken]
    assert 2 == len(list(tmp_path.iterdir()))


def test_a_request_is_answered_once(tmp_path: Path) -> None:
    snapshots = Snapshots(Folder(tmp_path), CPU, 2)
    answers = [snapshots.requested()]
    (tmp_path / "snapshot.request").touch()
    answers += [snapshots.requested(), snapshots.requested()]
    assert [False, True, False] == answers
    assert [] == list(tmp_path.iterdir())


def test_a_request_nobody_can_take_away_is_answered_once(tmp_path: Path) -> None:
    (tmp_path / "snapshot.request").mkdir()
    snapshots = Snapshots(Folder(tmp_path), CPU, 2)
    assert [True, False] == [snapshots.requested(), snapshots.requested()]


# -- in a run ---------------------------------------------------------------------------------


def profiled(
    directory: Path, device: torch.device = DEVICE, **settings: Any
) -> tuple[Any, list[Any]]:
    config = {"run": {"dir": str(directory)}, "plugins": {"profiler": settings}}
    return tiny_trainer(config, [SPEC], device=device)


def snapshots_in(directory: Path) -> list[str]:
    folder = directory / "plugins" / "profiler"
    return sorted(path.name for path in folder.glob("snapshot-*.json"))


def events_of(directory: Path, name: str) -> list[dict[str, Any]]:
    lines = (directory / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == name]


def test_a_run_writes_them_after_the_updates_asked_for(tmp_path: Path) -> None:
    trainer, batches = profiled(tmp_path, snapshot_at=[2, 5])
    with trainer:
        for batch in batches[:6]:
            trainer.step(batch)
    expected = ["snapshot-00000002-full-step.json", "snapshot-00000005-full-step.json"]
    assert expected == snapshots_in(tmp_path)
    assert expected == [
        line.removeprefix("snapshot: ")
        for line in trainer.report("profiler").splitlines()
        if line.startswith("snapshot: ") and line.endswith(".json")
    ]
    content = json.loads((tmp_path / "plugins/profiler" / expected[0]).read_text(encoding="utf-8"))
    device = str(batches[0]["x"].device)
    assert {"parameter", "buffer", "optimizer_state"} <= set(content["listed_bytes"][device])


def test_a_run_whose_process_holds_a_fake_tensor_has_its_snapshot(tmp_path: Path) -> None:
    with FakeTensorMode():
        held = torch.zeros(7, 11, 13)
    trainer, batches = profiled(tmp_path, snapshot_at=[2])
    with trainer:
        for batch in batches[:3]:
            trainer.step(batch)
    assert held.shape == (7, 11, 13)
    assert ["snapshot-00000002-full-step.json"] == snapshots_in(tmp_path)


def test_a_deferred_update_has_one_when_it_is_made(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path)},
        "plugins": {
            "profiler": {"snapshot_at": [1]},
            "gradient-accumulation": {"steps": 3, "across_steps": True},
        },
    }
    trainer, batches = tiny_trainer(config, [SPEC])
    with trainer:
        counts = []
        for batch in batches[:5]:
            trainer.step(batch)
            counts.append(len(snapshots_in(tmp_path)))
    assert [0, 0, 1, 1, 1] == counts


def test_a_running_process_answers_a_request(tmp_path: Path) -> None:
    trainer, batches = profiled(tmp_path)
    with trainer:
        trainer.step(batches[0])
        assert [] == snapshots_in(tmp_path)
        (tmp_path / "plugins" / "profiler" / "snapshot.request").touch()
        trainer.step(batches[1])
        trainer.step(batches[2])
    assert ["snapshot-00000002-full-step.json"] == snapshots_in(tmp_path)
    assert ["request"] == [event["reason"] for event in events_of(tmp_path, "profiler.snapshot")]


def test_a_spike_is_kept_on_request_only(tmp_path: Path) -> None:
    for wanted in (False, True):
        directory = tmp_path / str(wanted)
        settings = {"spike_mb": 30.0, "snapshot_on_spike": wanted, "max_snapshots": 1}
        trainer, batches = profiled(directory, CPU, **settings)
        leaked = []
        with trainer:
            for number, batch in enumerate(batches[:5], start=1):
                if number == 4:
                    leaked.append(touched(10_000_007))  # 40 MB, resident
                trainer.step(batch)
        expected = ["snapshot-00000004-full-forward.json"] if wanted else []
        assert expected == snapshots_in(directory)
        if wanted:
            path = directory / "plugins" / "profiler" / expected[0]
            content = json.loads(path.read_text(encoding="utf-8"))
            assert [10_000_007] in [tensor["shape"] for tensor in content["tensors"]]
            assert content["reason"].startswith("spike: +")
            problems = events_of(directory, "profiler.problem")
            assert "max_snapshots is reached" in problems[0]["problem"]


def test_a_snapshot_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    trainer, batches = profiled(tmp_path, CPU, snapshot_at=[2])
    (tmp_path / "plugins/profiler/snapshot-00000002-full-step.json").mkdir()
    with trainer:
        for batch in batches[:4]:
            trainer.step(batch)
    assert 4 == trainer.report("profiler").count("\n") - 3
    (event,) = events_of(tmp_path, "profiler.problem")
    assert "the snapshot of step 2 could not be written: IsADirectoryError" in event["problem"]


def test_without_a_run_directory_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    trainer, batches = tiny_trainer({"plugins": {"profiler": {"snapshot_at": [1]}}}, [SPEC])
    with trainer:
        trainer.step(batches[0])
    assert "there is no run directory to write to; set run.dir" in caplog.text


def test_a_snapshot_changes_nothing_of_the_run(tmp_path: Path) -> None:
    digests = []
    for settings in ({}, {"snapshot_at": [1, 2, 3]}):
        trainer, batches = profiled(tmp_path / str(len(digests)), **settings)
        with trainer:
            for batch in batches[:5]:
                trainer.step(batch)
            digests.append(trainer.digest())
    assert digests[0] == digests[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="asks torch's CUDA allocator")
def test_on_cuda_torchs_own_snapshot_lies_beside_it(tmp_path: Path) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    history = AllocationHistory()
    history.start()
    held = torch.ones(1_000_003, device=device)
    snapshots = Snapshots(Folder(tmp_path), device, 1)
    snapshots.take(1, "full", "step", "request", 0)
    history.stop()
    assert [".json", ".pickle"] == sorted(path.suffix for path in tmp_path.iterdir())
    (pickle,) = tmp_path.glob("*.pickle")
    assert os.path.basename(__file__).encode() in pickle.read_bytes()  # noqa: PTH119 - a stack
    assert held.is_cuda
    assert not torch._C._cuda_isHistoryEnabled()
