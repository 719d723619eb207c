"""The host beside its main thread: disks and arithmetic overlap, wait, and are checked."""

from __future__ import annotations

import threading

import pytest
import simulated_gpu
import torch
from simulated_gpu import (
    RaceError,
    detect_races,
    host_operation,
    host_thread,
    on_host_thread,
)

EXACT = {
    "launch_host": 0, "launch_device": 0, "copy_latency": 0, "disk_read": 2e9, "disk_write": 1e9,
    "host_flops": 1e9, "host_bandwidth": 4e9, "to_device": 1e9, "bandwidth": 1e9,
}  # fmt: skip
SIZE = 1_000_000
MS = pytest.approx


@pytest.fixture(autouse=True)
def exact(machine: None) -> None:
    simulated_gpu.configure(**EXACT)


def pinned() -> torch.Tensor:
    return torch.zeros(SIZE, dtype=torch.uint8).pin_memory()


def milliseconds(start: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return start.elapsed_time(end)


def begin(thread: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record(thread)
    return event


@pytest.mark.parametrize(
    ("engine", "given", "expected"),
    [
        ("disk_read", {"size": 6e6}, 3.0),
        ("disk_write", {"size": 6e6}, 6.0),
        ("host_arithmetic", {"size": 8e6, "flops": 1e6}, 2.0),  # memory bounds it
        ("host_arithmetic", {"size": 8e6, "flops": 5e6}, 5.0),
    ],
)
def test_each_engine_has_its_rate(engine: str, given: dict[str, float], expected: float) -> None:
    thread = host_thread("worker")
    start = begin(thread)
    done = host_operation(engine, thread, **given)
    assert milliseconds(start, done) == MS(expected)
    busy = simulated_gpu.statistics()["busy"]
    assert {name for name, seconds in busy.items() if seconds} == {engine}
    assert busy[engine] == MS(expected / 1e3)


def test_the_bytes_are_those_of_the_tensors_unless_they_are_given() -> None:
    thread, host = host_thread("disk"), pinned()
    start = begin(thread)
    assert milliseconds(start, host_operation("disk_read", thread, writes=[host])) == MS(0.5)


def test_an_engine_does_one_thing_at_a_time_and_engines_overlap() -> None:
    first, second = host_thread("one"), host_thread("two")
    start = begin(first)
    host_operation("disk_read", first, size=4e6)
    queued = host_operation("disk_read", second, size=4e6)
    beside = host_operation("disk_write", host_thread("three"), size=3e6)
    assert milliseconds(start, queued) == MS(4.0)
    assert milliseconds(start, beside) == MS(3.0)
    assert simulated_gpu.statistics()["seconds"] == 0  # the main thread has waited for nothing


def test_a_disk_tier_is_a_pipeline_of_events() -> None:
    disk, host = host_thread("disk"), [pinned() for _ in range(2)]
    slots = [torch.empty(SIZE, dtype=torch.uint8, device="cuda") for _ in range(2)]
    lane = torch.cuda.Stream()
    torch.cuda.synchronize()
    simulated_gpu.reset()
    start, used = begin(disk), [None, None]
    with detect_races():
        for step in range(6):
            here = step % 2
            after = [used[here]] if used[here] else []
            read = host_operation("disk_read", disk, writes=[host[here]], after=after)
            lane.wait_event(read)
            with torch.cuda.stream(lane):
                slots[here].copy_(host[here], non_blocking=True)
                used[here] = torch.cuda.Event(enable_timing=True)
                used[here].record()
        lane.synchronize()
    assert milliseconds(start, used[1]) == MS(0.5 + 6 * 1.0)  # the link bounds it


def test_a_read_from_disk_that_does_not_wait_for_the_copy_is_a_race() -> None:
    disk, host = host_thread("disk"), simulated_gpu.name(pinned(), "page")
    here = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    here.copy_(host, non_blocking=True)
    with pytest.raises(RaceError, match=r"'disk'\) writes 'page'\+0, read by copy to device"):  # noqa: SIM117
        with detect_races():
            host_operation("disk_read", disk, writes=[host])


def test_the_main_thread_waits_for_what_a_background_thread_wrote() -> None:
    disk, host = host_thread("disk"), simulated_gpu.name(pinned(), "page")

    def careless() -> None:
        with detect_races():
            host_operation("disk_read", disk, writes=[host], name="load")
            host.sum()

    with pytest.raises(RaceError, match=r"the host's aten::sum reads 'page'\+0, written by load"):
        careless()
    with detect_races():
        host_operation("disk_read", disk, writes=[host], name="load").synchronize()
        host.sum()
    assert simulated_gpu.statistics()["host_waited"] > 0


def updated(*, in_background: bool) -> float:
    """Return the seconds of an update on the host beside products on the device."""
    thread, weights = host_thread("optimizer"), torch.ones(SIZE).pin_memory()
    a = torch.empty(1000, 1000, device="cuda")
    torch.cuda.synchronize()
    simulated_gpu.configure(flops_single=1e12)
    simulated_gpu.reset()
    ready, done = torch.cuda.Event(), torch.cuda.Event()
    ready.record()

    def update() -> None:
        with on_host_thread(thread, after=[ready]):
            for _ in range(4):
                weights.mul_(0.5)
            done.record(thread)

    if in_background:
        worker = threading.Thread(target=update)
        worker.start()
        worker.join()
    else:
        for _ in range(4):
            weights.mul_(0.5)
        done.record()
    for _ in range(4):
        a @ a
    done.synchronize()
    with detect_races():
        weights.sum()
    torch.cuda.synchronize()
    return simulated_gpu.statistics()["seconds"]


def test_an_optimizer_in_the_background_runs_beside_the_main_thread() -> None:
    alone, beside = updated(in_background=False), updated(in_background=True)
    update, products, read = 4 * 4 * SIZE / 4e9, 4 * 3 * 4e6 / 1e9, 4 * SIZE / 4e9
    assert alone == MS(update + max(products, read))
    assert beside == MS(max(products, update + read))
    assert beside < alone


def test_an_update_in_the_background_without_a_wait_is_a_race() -> None:
    thread, weights = host_thread("optimizer"), simulated_gpu.name(pinned(), "weights")
    here = torch.empty(SIZE, dtype=torch.uint8, device="cuda")
    here.copy_(weights, non_blocking=True)
    with pytest.raises(RaceError, match=r"aten::add_ .*'optimizer'\) writes 'weights'\+0"):  # noqa: SIM117
        with detect_races(), on_host_thread(thread):
            weights.add_(1)
    copied = torch.cuda.Event()
    torch.cuda.current_stream().wait_stream(thread)
    here.copy_(weights, non_blocking=True)
    copied.record()
    with detect_races(), on_host_thread(thread, after=[copied]):
        weights.add_(1)


def test_waiting_holds_only_the_thread_that_waits() -> None:
    thread = host_thread("optimizer")
    long = host_operation("disk_read", host_thread("disk"), size=2e6)
    with on_host_thread(thread):
        assert not long.query()
        long.synchronize()
        assert long.query()
    found = simulated_gpu.statistics()
    assert (found["seconds"], found["host_waited"]) == (0, 0)
    assert not long.query()


def test_a_synchronization_of_the_device_waits_for_no_thread_of_the_host() -> None:
    host_operation("disk_read", host_thread("disk"), size=2e6)
    torch.cuda.synchronize()
    assert simulated_gpu.statistics()["seconds"] == 0


def test_a_product_on_the_host_takes_its_operations() -> None:
    a = torch.ones(100, 100)
    simulated_gpu.reset()
    a @ a
    assert simulated_gpu.statistics()["host_worked"] == MS(2 * 100**3 / 1e9)


def test_what_is_not_of_the_host_is_refused() -> None:
    thread = host_thread("worker")
    with pytest.raises(RuntimeError, match="no engine of the host: 'compute'; there is disk_read"):
        host_operation("compute", thread, size=1)
    with pytest.raises(RuntimeError, match="load is of the host, and a tensor is on cuda:0"):
        host_operation("disk_read", thread, writes=[torch.ones(1, device="cuda")], name="load")
    with pytest.raises(RuntimeError, match="a thread of the host runs no kernels"):  # noqa: SIM117
        with torch.cuda.stream(thread):
            pass
