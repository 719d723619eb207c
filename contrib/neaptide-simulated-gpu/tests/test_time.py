"""Time: engines overlap where streams allow it, and events tell when."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import simulated_gpu
import torch

if TYPE_CHECKING:
    from pathlib import Path

NO_LATENCY = {"launch_host": 0, "launch_device": 0, "copy_latency": 0}
SIZE = 64 << 20


def prefetched(*, streams: int, steps: int = 8) -> dict:
    lane = torch.cuda.Stream() if streams == 2 else torch.cuda.current_stream()
    host = torch.empty(SIZE, dtype=torch.uint8).pin_memory()
    slots = [torch.empty(SIZE, dtype=torch.uint8, device="cuda") for _ in range(2)]
    a = torch.empty(512, 512, device="cuda", dtype=torch.bfloat16)
    torch.cuda.synchronize()
    simulated_gpu.reset()
    arrived = [torch.cuda.Event() for _ in range(2)]
    used = [torch.cuda.Event() for _ in range(2)]
    for step in range(steps):
        lane.wait_event(used[step % 2])
        with torch.cuda.stream(lane):
            slots[step % 2].copy_(host, non_blocking=True)
            arrived[step % 2].record(lane)
        torch.cuda.current_stream().wait_event(arrived[step % 2])
        for _ in range(4):
            a @ a
        used[step % 2].record()
    torch.cuda.synchronize()
    return simulated_gpu.statistics()


def test_copies_overlap_with_compute_on_two_streams() -> None:
    product = 2 * 512**3  # one takes 1 ms, a copy 4 ms
    simulated_gpu.configure(
        flops_half=product * 1000, to_device=SIZE * 250, bandwidth=1e15, **NO_LATENCY
    )
    alone, beside = prefetched(streams=1), prefetched(streams=2)
    assert alone["seconds"] == pytest.approx(8 * 8e-3, rel=0.01)
    assert beside["seconds"] == pytest.approx(9 * 4e-3, rel=0.01)
    assert beside["busy"]["compute"] == pytest.approx(8 * 4e-3, rel=0.01)


def test_events_measure_simulated_milliseconds() -> None:
    simulated_gpu.configure(bandwidth=1e9, **NO_LATENCY)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    x = torch.empty(1_000_000, dtype=torch.uint8, device="cuda")
    start.record()
    x.fill_(0)
    end.record()
    assert not end.query()
    end.synchronize()
    assert start.elapsed_time(end) == pytest.approx(1.0)


def test_pageable_memory_halves_the_rate_and_holds_the_host() -> None:
    simulated_gpu.configure(to_device=1e9, **NO_LATENCY)
    here, pageable = (
        torch.empty(1_000_000, dtype=torch.uint8, device="cuda"),
        torch.empty(1_000_000, dtype=torch.uint8),
    )
    before = simulated_gpu.statistics()["seconds"]
    here.copy_(pageable, non_blocking=True)
    assert simulated_gpu.statistics()["seconds"] - before == pytest.approx(2e-3, rel=0.02)


def test_fake_data_takes_no_memory_and_has_the_same_time() -> None:
    def step() -> float:
        a = torch.empty(1024, 1024, device="cuda")
        simulated_gpu.reset()
        for _ in range(10):
            a = a @ a
        torch.cuda.synchronize()
        return simulated_gpu.statistics()["seconds"]

    real = step()
    with simulated_gpu.fake_data():
        assert step() == real
        simulated_gpu.configure(capacity=1 << 43)
        huge = torch.empty(1 << 40, dtype=torch.uint8, device="cuda")  # a TiB
        assert huge[5].item() == 1
        del huge
        torch.cuda.empty_cache()


def test_an_error_with_fake_data_is_the_programs_own() -> None:
    def program() -> None:
        with simulated_gpu.fake_data():
            held = torch.ones(3, device="cuda")
            held + torch.ones(4, device="cuda")

    with pytest.raises(RuntimeError, match="broadcast a dimension of length 4") as told:
        program()
    with pytest.raises(RuntimeError, match="fake tensors are still held"):
        torch.ones(2, device="cuda")
    del told
    assert torch.ones(3, device="cuda").sum().item() == 3


def test_a_host_that_asks_again_and_again_sees_the_end() -> None:
    simulated_gpu.configure(bandwidth=1e9, **NO_LATENCY)
    torch.ones(1_000_000, dtype=torch.uint8, device="cuda")
    done = torch.cuda.Event()
    done.record()
    asked = 0
    while not done.query():
        asked += 1
    assert 990 <= asked <= 1000  # a millisecond, and asking takes a microsecond
    assert torch.cuda.current_stream().query()


def test_a_timeline_is_a_chrome_trace(tmp_path: Path) -> None:
    with simulated_gpu.timeline(tmp_path / "trace.json") as found:
        torch.ones(8, device="cuda").sum()
    assert [one[0] for one in found] == ["aten::fill_", "aten::sum"]
    events = json.loads((tmp_path / "trace.json").read_text("utf-8"))["traceEvents"]
    assert [event["name"] for event in events] == ["aten::fill_", "aten::sum"]
    assert all(event["dur"] > 0 for event in events)


def test_torchs_profiler_measures_the_simulated_time() -> None:
    simulated_gpu.configure(bandwidth=1e9, **NO_LATENCY)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    a = torch.ones(1000, 250, device="cuda")
    with torch.profiler.profile(activities=kinds) as found:
        a = a * 2
    times = {event.key: event.self_device_time_total for event in found.key_averages()}
    # In microseconds: a MB is read, another is written.
    assert times["aten::mul"] == pytest.approx(2000)
