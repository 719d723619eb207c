"""Measures the rates of this machine, as a profile. `neaptide doctor --bench` stores it.

Times of a GPU are medians by its events, times of the host by its clock.
"""

from __future__ import annotations

import json
import mmap
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import torch

from neaptide.io.folder import replace_file

from . import facts, profiles

if TYPE_CHECKING:
    from collections.abc import Callable

REPEATS = 9
MIB = 2**20
SMALL, IN_A_ROW = 4096, 200


@attrs.frozen
class Sizes:
    """How much is computed and copied: sides of matrices, bytes, and numbers of operations."""

    half: int = 8192
    single: int = 4096
    host_side: int = 4096
    copied: int = 512 * MIB
    file: int = 2048 * MIB
    operations: int = 2000


ON_CPU = Sizes(1024, 1024, 1024, 256 * MIB, 512 * MIB, 2000)
TINY = Sizes(64, 64, 64, MIB, MIB, 20)
Found = dict[str, tuple[float, str]]
"""By rate: the figure, and how it was measured."""


def by_events(device: torch.device, action: Callable[[], object], calls: int = 1) -> float:
    """Return the median seconds of one call, by the device's clock. The first call warms up."""
    taken, api = [], torch.get_device_module(device)
    for _ in range(REPEATS + 1):
        start, end = (api.Event(enable_timing=True) for _ in range(2))
        api.synchronize()
        start.record()
        for _ in range(calls):
            action()
        end.record()
        api.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / calls)
    return float(statistics.median(taken[1:]))


def by_host(action: Callable[[], object]) -> float:
    """Return the median seconds of one call, by the host's clock. The first call warms up."""
    taken = []
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[1:])


def products(sizes: Sizes, device: torch.device) -> Found:
    """Return the FLOP/s of products of random matrices."""
    found: Found = {}
    for rate, side, dtype in (
        ("flops_half", sizes.half, torch.bfloat16),
        ("flops_single", sizes.single, torch.float32),
    ):
        one, other = (torch.randn(side, side, dtype=dtype, device=device) for _ in range(2))
        product = torch.empty_like(one)
        seconds = by_events(device, partial(torch.mm, one, other, out=product))
        name = str(dtype).removeprefix("torch.")
        found[rate] = 2 * side**3 / seconds, f"{name} product of {side} x {side} random matrices"
    one, other = (torch.randn(sizes.host_side, sizes.host_side) for _ in range(2))
    seconds = by_host(partial(torch.mm, one, other))
    threads = torch.get_num_threads()
    how = f"float32 product of {sizes.host_side} x {sizes.host_side}, {threads} threads"
    found["host_flops"] = 2 * sizes.host_side**3 / seconds, how
    return found


def copies(sizes: Sizes, device: torch.device) -> Found:
    """Return the bytes/s of copies on the device, over the link and in RAM."""
    size, copied = sizes.copied, f"copy of {sizes.copied // MIB} MiB"
    near, there = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    far, away = (
        torch.ones(size, dtype=torch.uint8, device="cpu", pin_memory=True) for _ in range(2)
    )
    plain, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    seconds = {
        "bandwidth": by_events(device, partial(there.copy_, near)),
        "to_device": by_events(device, partial(near.copy_, far, non_blocking=True)),
        "to_host": by_events(device, partial(away.copy_, near, non_blocking=True)),
        "host_bandwidth": by_host(partial(target.copy_, plain)),
    }
    small = partial(near[:SMALL].copy_, far[:SMALL], non_blocking=True)
    found: Found = {
        "bandwidth": (2 * size / seconds["bandwidth"], f"{copied}, read and written"),
        "to_device": (size / seconds["to_device"], f"{copied} from pinned memory"),
        "to_host": (size / seconds["to_host"], f"{copied} to pinned memory"),
        "host_bandwidth": (
            2 * size / seconds["host_bandwidth"],
            f"{copied} in RAM, read and written, {torch.get_num_threads()} threads",
        ),
        "copy_latency": (
            by_events(device, small, IN_A_ROW),
            f"copy of {SMALL} bytes from pinned memory, {IN_A_ROW} in a row",
        ),
    }
    if torch.get_device_module(device).device_count() > 1:
        second = torch.device(device.type, 1 - (device.index or 0))
        other = torch.empty(size, dtype=torch.uint8, device=second)
        taken = by_events(device, partial(other.copy_, near))
        found["peer"] = size / taken, f"{copied} to another device"
    return found


def launches(sizes: Sizes, device: torch.device) -> Found:
    """Return the seconds that an operation on 1 element takes: of the host, and of the device."""
    one = torch.zeros(1, device=device)
    side = sizes.half
    cover = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(cover)
    hosts, devices, api = [], [], torch.get_device_module(device)
    for _ in range(REPEATS + 1):
        api.synchronize()
        for _ in range(20):  # the device is busy until all operations are enqueued
            torch.mm(cover, cover, out=product)
        start, end = (api.Event(enable_timing=True) for _ in range(2))
        start.record()
        began = time.perf_counter()
        for _ in range(sizes.operations):
            one.add_(1)
        hosts.append((time.perf_counter() - began) / sizes.operations)
        end.record()
        api.synchronize()
        devices.append(start.elapsed_time(end) / 1e3 / sizes.operations)
    how = f"{sizes.operations} additions to 1 element"
    return {
        "launch_host": (statistics.median(hosts[1:]), f"{how}, until they are enqueued"),
        "launch_device": (
            statistics.median(devices[1:]),
            f"{how}, enqueued while the device is busy",
        ),
    }


def processor(sizes: Sizes) -> Found:
    """Return the rates of a machine whose device is its CPU."""
    found: Found = {}
    threads = torch.get_num_threads()
    for rate, side, dtype in (
        ("flops_half", sizes.half, torch.bfloat16),
        ("flops_single", sizes.single, torch.float32),
    ):
        one, other = (torch.randn(side, side).to(dtype) for _ in range(2))
        seconds = by_host(partial(torch.mm, one, other))
        name = str(dtype).removeprefix("torch.")
        found[rate] = 2 * side**3 / seconds, f"{name} product of {side} x {side}, {threads} threads"
    found["host_flops"] = found["flops_single"]
    size = sizes.copied
    plain, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    speed = size / by_host(partial(target.copy_, plain))
    how = f"copy of {size // MIB} MiB in RAM, {threads} threads"
    found |= dict.fromkeys(("bandwidth", "host_bandwidth"), (2 * speed, f"{how}, read and written"))
    found |= dict.fromkeys(("to_device", "to_host", "peer"), (speed, how))
    small = partial(target[:SMALL].copy_, plain[:SMALL])
    found["copy_latency"] = by_host(small), f"copy of {SMALL} bytes"
    one = torch.zeros(1)
    found["launch_host"] = by_host(partial(one.add_, 1)), "addition to 1 element"
    found["launch_device"] = 0.0, "a CPU launches nothing"
    return found


def disk(sizes: Sizes, folder: Path) -> Found:
    """Return the bytes/s of one file, written to the disk and read from there.

    The system's cache is left out (O_DIRECT), unless the file system refuses that.
    """
    try:
        return _disk(sizes, folder, getattr(os, "O_DIRECT", 0))
    except OSError:
        return _disk(sizes, folder, 0)


def _disk(sizes: Sizes, folder: Path, direct: int) -> Found:
    block = mmap.mmap(-1, min(sizes.file, 64 * MIB))  # pages, as O_DIRECT asks for
    block.write(os.urandom(len(block)))
    blocks = sizes.file // len(block)
    number, name = tempfile.mkstemp(dir=folder)
    try:
        os.close(number)
        number = os.open(name, os.O_RDWR | direct)
        try:
            start = time.perf_counter()
            written = sum(os.writev(number, [block]) for _ in range(blocks))
            os.fsync(number)
            write = written / (time.perf_counter() - start)
            if not direct and hasattr(os, "posix_fadvise"):
                os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
            os.lseek(number, 0, os.SEEK_SET)
            start, read = time.perf_counter(), 0
            while got := os.readv(number, [block]):
                read += got
            seconds = time.perf_counter() - start
        finally:
            os.close(number)
    finally:
        Path(name).unlink()
    how = f"one file of {blocks * len(block) // MIB} MiB in pieces of {len(block) // MIB} MiB"
    how += ", direct I/O" if direct else ", the file system has no direct I/O"
    return {"disk_read": (read / seconds, how), "disk_write": (write, f"{how}, with fsync")}


def profile(sizes: Sizes, device: torch.device, folder: Path) -> dict[str, Any]:
    """Return the profile: `name`, `rates`, `sources` (how each was measured), and `measured`.

    Args:
        sizes: how much is computed and copied.
        device: the CPU, or a device whose events have times, such as CUDA.
        folder: the disk of this folder is measured.
    """
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        if device.type == "cpu":
            found = processor(sizes)
        else:
            found = products(sizes, device) | copies(sizes, device) | launches(sizes, device)
    finally:
        torch.set_float32_matmul_precision(precision)
    found |= disk(sizes, folder)
    rates = {name: value for name, (value, _) in found.items()}
    sources = {name: f"measured: {how}" for name, (_, how) in found.items()}
    if "peer" not in rates:
        rates["peer"] = min(rates["to_device"], rates["to_host"])
        sources["peer"] = "assumed: through the host, as there is one device"
    rates["capacity"] = capacity_of(device)
    sources["capacity"] = "measured: as the system reports it"
    return {
        "name": name_of(device),
        "rates": rates,
        "sources": sources,
        "measured": {
            "date": datetime.now(UTC).date().isoformat(),
            "torch": str(torch.__version__),
            "neaptide": facts.installed("neaptide") or "unknown",
        },
    }


def name_of(device: torch.device) -> str:
    """Return the name of a device, which its profile has."""
    if device.type == "cpu":
        return facts.processor().model or "CPU"
    return str(torch.get_device_module(device).get_device_properties(device).name)


def capacity_of(device: torch.device) -> int:
    """Return the bytes of a device's memory, or of RAM."""
    if device.type == "cpu":
        return facts.memory().limit or 1
    return int(torch.get_device_module(device).get_device_properties(device).total_memory)


def store(device: torch.device, folder: Path, sizes: Sizes | None = None) -> Path:
    """Measure a device and write its profile, which `neaptide plan` reads; return the file.

    Raises:
        OSError: the file or the folder cannot be written.
    """
    sizes = sizes or (ON_CPU if device.type == "cpu" else Sizes())
    found, path = profile(sizes, device, folder), profiles.measured_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(found, indent=2) + "\n").encode())
    return path
