"""What torch's own functions say of the allocator: statistics, summaries, snapshots, history."""

from __future__ import annotations

import pickle
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import simulated_gpu
import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
memory = torch.cuda.memory


@pytest.fixture(autouse=True)
def recording() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    memory._record_memory_history(enabled=None)


def taken(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def actions() -> list[str]:
    return [one["action"] for one in memory._snapshot()["device_traces"][0]]


def check_segments(segments: list[dict[str, Any]]) -> None:
    """Blocks fill their segment without a gap, and the sums are those of the statistics."""
    for segment in segments:
        blocks = segment["blocks"]
        assert blocks[0]["address"] == segment["address"]
        for one, following in pairwise(blocks):
            assert one["address"] + one["size"] == following["address"]
        assert sum(one["size"] for one in blocks) == segment["total_size"]
    for key, total in (
        ("total_size", torch.cuda.memory_reserved()),
        ("allocated_size", torch.cuda.memory_allocated()),
        ("active_size", torch.cuda.memory_stats()["active_bytes.all.current"]),
        ("requested_size", torch.cuda.memory_stats()["requested_bytes.all.current"]),
    ):
        assert sum(segment[key] for segment in segments) == total


def test_nested_statistics_are_those_of_the_flat_ones() -> None:
    kept = taken(3 * MIB), taken(100)
    nested, flat = torch.cuda.memory_stats_as_nested_dict(), torch.cuda.memory_stats()
    assert nested["allocated_bytes"]["all"]["current"] == 3 * MIB + 512
    assert nested["allocated_bytes"]["small_pool"]["current"] == 512
    assert nested["segment"]["large_pool"]["current"] == 1
    assert flat["allocated_bytes.large_pool.current"] == 3 * MIB
    assert nested["num_ooms"] == flat["num_ooms"]
    del kept


def test_the_summary_is_torchs_table() -> None:
    kept = taken(64 * MIB)
    text = torch.cuda.memory_summary()
    assert "PyTorch CUDA memory summary, device ID 0" in text
    (row,) = [line for line in text.splitlines() if line.startswith("| GPU reserved memory")]
    assert "65536 KiB" in row or "64 MiB" in row
    del kept


@pytest.mark.parametrize("expandable", [False, True])
def test_a_snapshot_has_every_byte(expandable: bool) -> None:  # noqa: FBT001
    simulated_gpu.configure(expandable_segments=expandable)
    kept = [taken(size) for size in (100, 3 * MIB, 700, 12 * MIB, 5 * MIB)]
    del kept[1]
    segments = torch.cuda.memory_snapshot()
    check_segments(segments)
    assert {segment["is_expandable"] for segment in segments} == {expandable}
    states = [block["state"] for segment in segments for block in segment["blocks"]]
    assert states.count("active_allocated") == 4
    used = {block["address"]: block for segment in segments for block in segment["blocks"]}
    assert all(used[one.data_ptr()]["requested_size"] == one.nbytes for one in kept)
    kept.clear()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_snapshot() == []


def test_memory_that_a_stream_still_uses_awaits_its_free() -> None:
    side, kept = torch.cuda.Stream(), taken(4 * MIB)
    host = torch.empty(4 * MIB, dtype=torch.uint8).pin_memory()
    memory._record_memory_history()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        host.copy_(kept, non_blocking=True)
    kept.record_stream(side)
    del kept
    segments = torch.cuda.memory_snapshot()
    check_segments(segments)
    (block,) = [one for each in segments for one in each["blocks"] if one["state"] != "inactive"]
    assert block["state"] == "active_awaiting_free"
    assert actions() == ["free_requested"]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    assert actions() == ["free_requested", "free_completed", "segment_free"]


def test_the_history_has_each_call_with_its_lines() -> None:
    assert not torch._C._cuda_isHistoryEnabled()
    memory._record_memory_history(max_entries=100, stacks="python")
    assert torch._C._cuda_isHistoryEnabled()
    kept = taken(3 * MIB)  # this line
    snapshot = memory._snapshot()
    (block,) = [
        one
        for segment in snapshot["segments"]
        for one in segment["blocks"]
        if one["state"] == "active_allocated"
    ]
    assert block["address"] == kept.data_ptr()
    innermost, caller, *_ = block["frames"]
    assert (innermost["name"], caller["name"]) == (
        "taken",
        "test_the_history_has_each_call_with_its_lines",
    )
    assert innermost["filename"] == __file__
    assert "# this line" in Path(__file__).read_text("utf-8").splitlines()[caller["line"] - 1]
    del kept
    torch.cuda.empty_cache()
    trace = memory._snapshot()["device_traces"][0]
    assert [(one["action"], one["size"]) for one in trace] == [
        ("segment_alloc", 20 * MIB),
        ("alloc", 3 * MIB),
        ("free_requested", 3 * MIB),
        ("free_completed", 3 * MIB),
        ("segment_free", 20 * MIB),
    ]
    assert all(one["frames"] for one in trace)


def test_a_full_device_is_in_the_history() -> None:
    simulated_gpu.configure(capacity=32 * MIB)
    memory._record_memory_history()
    kept = taken(20 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        taken(20 * MIB)
    (told,) = [one for one in memory._snapshot()["device_traces"][0] if one["action"] == "oom"]
    assert (told["device_free"], told["size"]) == (12 * MIB, 20 * MIB)
    del kept


def test_settings_of_the_history_hold() -> None:
    def frames_of_frees(**settings: Any) -> list[bool]:
        memory._record_memory_history(clear_history=True, **settings)
        taken(100)
        trace = memory._snapshot()["device_traces"][0]
        return [bool(one["frames"]) for one in trace if one["action"] != "segment_alloc"]

    assert frames_of_frees() == [True] * 3
    assert frames_of_frees(context="alloc") == [True, False, False]
    assert frames_of_frees(context="state") == [False] * 3
    assert frames_of_frees(context=None) == [False] * 3
    assert frames_of_frees(max_entries=2) == [True] * 2
    assert frames_of_frees(skip_actions=["free_requested"]) == [True] * 2
    assert frames_of_frees(enabled="state") == []
    with pytest.raises(RuntimeError, match="expected state or all, not 'some'"):
        memory._record_memory_history(enabled="some")
    memory._record_memory_history(enabled=None)
    assert actions() == []
    taken(100)
    assert actions() == []


def test_a_snapshot_is_written_as_torch_writes_it(tmp_path: Path) -> None:
    memory._record_memory_history()
    kept = torch.nn.Linear(64, 64, device="cuda")
    kept(torch.ones(2, 64, device="cuda")).sum().backward()  # frees by autograd's thread
    memory._dump_snapshot(str(tmp_path / "snapshot.pickle"))
    snapshot = pickle.loads((tmp_path / "snapshot.pickle").read_bytes())
    check_segments(snapshot["segments"])
    assert len(snapshot["device_traces"]) == 1
    allocated = [one for one in snapshot["device_traces"][0] if one["action"] == "alloc"]
    assert any(
        frame["name"] == test_a_snapshot_is_written_as_torch_writes_it.__name__
        for one in allocated
        for frame in one["frames"]
    )
    del kept


def test_recording_changes_no_statistic() -> None:
    def used() -> dict[str, Any]:
        torch.cuda.empty_cache()
        torch.cuda.reset_accumulated_memory_stats()
        simulated_gpu.reset()
        kept = [taken(size * MIB) for size in (1, 3, 9, 12)]
        del kept[1]
        kept.append(taken(2 * MIB))
        return torch.cuda.memory_stats()

    before = used()
    memory._record_memory_history()
    assert before == used()
