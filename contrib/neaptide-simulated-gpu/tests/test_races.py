"""The eleven kinds of race, each committed on purpose; and that correct code is not accused."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
import simulated_gpu
import torch
from racing import raced
from simulated_gpu import detect_races

SIZE = 4096


def side_stream() -> torch.cuda.Stream:
    stream = torch.cuda.Stream()
    simulated_gpu.name(stream, "side")
    return stream


def on_device() -> torch.Tensor:
    tensor = torch.zeros(SIZE, device="cuda")
    torch.cuda.synchronize()
    return simulated_gpu.name(tensor, "weights")


def pinned() -> torch.Tensor:
    return simulated_gpu.name(torch.zeros(SIZE).pin_memory(), "host weights")


def test_kind_1_a_read_without_a_wait_for_the_write() -> None:
    side, weights, host = side_stream(), on_device(), pinned()
    with raced(r"aten::sum .*'default'\) reads 'weights'\+0, written by copy to device .*'side'"):
        with torch.cuda.stream(side):
            weights.copy_(host, non_blocking=True)
        weights.sum()


def test_kind_2_a_slot_is_overwritten_while_it_is_read() -> None:
    side, weights, host = side_stream(), on_device(), pinned()
    with raced(r"copy to device .*'side'\) writes 'weights'\+0, read by aten::sum"):
        weights.sum()
        with torch.cuda.stream(side):
            weights.copy_(host, non_blocking=True)


def test_kind_3_two_writes_in_no_order() -> None:
    side, weights = side_stream(), on_device()
    with raced(r"aten::fill_ .*writes 'weights'\+0, written by aten::zero_"):
        weights.zero_()
        with torch.cuda.stream(side):
            weights.fill_(1)


def test_kind_4_the_host_reads_what_a_copy_still_writes() -> None:
    weights, host = on_device(), pinned()
    with raced(r"the host's aten::sum reads 'host weights'\+0, written by copy to host"):
        host.copy_(weights, non_blocking=True)
        host.sum()


def test_kind_5_the_host_writes_what_a_copy_still_reads() -> None:
    weights, host = on_device(), pinned()
    with raced(r"the host's aten::fill_ writes 'host weights'\+0, read by copy to device"):
        weights.copy_(host, non_blocking=True)
        host.fill_(1)


def test_kind_6_the_host_writes_what_a_copy_still_writes() -> None:
    weights, host = on_device(), pinned()
    with raced(r"the host's aten::zero_ writes 'host weights'\+0, written by copy to host"):
        host.copy_(weights, non_blocking=True)
        host.zero_()


def test_a_name_ends_with_its_tensor() -> None:
    memory, weights, runtime = bytearray(4 * SIZE), on_device(), torch.cuda.cudart()
    host = simulated_gpu.name(torch.frombuffer(memory, dtype=torch.float32), "host weights")
    del host
    host = torch.frombuffer(memory, dtype=torch.float32)
    assert runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 1) == 0
    with raced(r"the host's aten::sum reads host memory at \d+"):
        host.copy_(weights, non_blocking=True)
        host.sum()
    torch.cuda.synchronize()
    assert runtime.cudaHostUnregister(host.data_ptr()) == 0


def freed_early(*, recorded: bool) -> None:
    side, weights, host = side_stream(), on_device(), pinned()
    with torch.cuda.stream(side):
        host.copy_(weights, non_blocking=True)
    if recorded:
        weights.record_stream(side)
    del weights
    torch.zeros(SIZE, device="cuda")
    side.synchronize()


def test_kind_7_device_memory_is_freed_while_another_stream_uses_it() -> None:
    with raced(r"may get the memory of 'weights'\+0, .* still used by copy to host"):
        freed_early(recorded=False)


def test_record_stream_keeps_freed_memory() -> None:
    with detect_races():
        freed_early(recorded=True)


def test_kind_8_pinned_memory_is_unregistered_while_a_copy_uses_it() -> None:
    weights, host = on_device(), torch.zeros(SIZE)
    runtime = torch.cuda.cudart()
    assert runtime.cudaHostRegister(host.data_ptr(), host.nbytes, 1) == 0
    with raced(r"is unregistered while copy to device .* still uses it"):
        weights.copy_(host, non_blocking=True)
        assert runtime.cudaHostUnregister(host.data_ptr()) == 0


def test_kind_9_another_device_uses_memory_in_no_order() -> None:
    simulated_gpu.configure(devices=2)
    here = simulated_gpu.name(torch.zeros(SIZE, device="cuda:0"), "here")
    there = torch.ones(SIZE, device="cuda:1")
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    side = torch.cuda.Stream(0)
    with raced(r"aten::mul_ .* writes 'here'\+0, written by copy between devices"):
        here.copy_(there)  # ordered with the current streams of both devices, not with `side`
        with torch.cuda.stream(side):
            here.mul_(2)


def test_kind_10_a_copy_over_two_registrations_is_refused() -> None:
    whole = torch.zeros(2 * SIZE)
    runtime = torch.cuda.cudart()
    half = whole.nbytes // 2
    for start in (0, half):
        assert runtime.cudaHostRegister(whole.data_ptr() + start, half, 1) == 0
    with pytest.raises(RuntimeError, match="reaches over two registrations of host memory"):
        torch.empty(2 * SIZE, device="cuda").copy_(whole, non_blocking=True)
    for start in (0, half):
        assert runtime.cudaHostUnregister(whole.data_ptr() + start) == 0


READS_A_POINTER = """
import ctypes, numpy, simulated_gpu, torch

x = torch.ones(9, device="cuda")
print("before", flush=True)
{read}
print("after")
"""


@pytest.mark.parametrize(
    "read",
    [
        "ctypes.string_at(x.data_ptr(), 4)",
        "numpy.frombuffer((ctypes.c_char * 4).from_address(x.data_ptr()), 'u1').sum()",
    ],
)
def test_kind_11_the_host_reads_device_memory_by_its_pointer(read: str) -> None:
    command = [sys.executable, "-X", "faulthandler", "-c", READS_A_POINTER.format(read=read)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGSEGV
    assert done.stdout == "before\n"
    assert "Segmentation fault" in done.stderr


def test_the_line_of_the_program_is_told() -> None:
    side, weights, host = side_stream(), on_device(), pinned()
    with torch.cuda.stream(side):
        weights.copy_(host, non_blocking=True)
    weights.sum()  # this line
    (told,) = simulated_gpu.races()
    assert "weights.sum()  # this line" in told
    simulated_gpu.reset()


def test_each_race_of_one_operation_has_its_line() -> None:
    side, weights, other, host = side_stream(), on_device(), on_device(), pinned()
    with torch.cuda.stream(side):
        weights.copy_(host, non_blocking=True)
        other.zero_()
    weights.dot(other)  # this line
    races = simulated_gpu.races()
    assert len(races) == 2
    assert all("weights.dot(other)  # this line" in told for told in races)
    simulated_gpu.reset()


def through_two_slots(*, steps: int = 4) -> None:
    lane = side_stream()
    weights = [torch.randn(64, 64).pin_memory() for _ in range(steps)]
    slots = [torch.empty(64, 64, device="cuda") for _ in range(2)]
    used = [torch.cuda.Event() for _ in slots]
    arrived = [torch.cuda.Event() for _ in slots]
    x = torch.randn(8, 64, device="cuda")
    for event in used:
        event.record()

    def fetch(step: int) -> None:
        with torch.cuda.stream(lane):
            lane.wait_event(used[step % 2])
            slots[step % 2].copy_(weights[step], non_blocking=True)
            arrived[step % 2].record(lane)

    fetch(0)
    for step in range(steps):
        if step + 1 < steps:
            fetch(step + 1)
        torch.cuda.current_stream().wait_event(arrived[step % 2])
        x = x @ slots[step % 2]
        used[step % 2].record()
    torch.cuda.synchronize()


def test_a_correct_prefetch_is_not_accused() -> None:
    with detect_races():
        through_two_slots()


def test_columns_beside_each_other_are_not_a_conflict() -> None:
    side, table = side_stream(), torch.zeros(16, 8, device="cuda")
    torch.cuda.synchronize()
    with detect_races():
        table[:, :4].fill_(1)
        with torch.cuda.stream(side):
            table[:, 4:].fill_(2)
        torch.cuda.synchronize()


def test_a_backward_over_two_streams_is_ordered_by_autograd() -> None:
    lane = side_stream()
    x = torch.randn(4, 4, device="cuda", requires_grad=True)
    with detect_races():
        y = x * 2
        lane.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(lane):
            y.record_stream(lane)
            z = y.exp()
        torch.cuda.current_stream().wait_stream(lane)
        z.record_stream(torch.cuda.current_stream())
        (z * 3).sum().backward()
        x.grad.add_(1)
        del y, z
        torch.cuda.synchronize()
