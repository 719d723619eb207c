"""Measure the rates of this machine, as a profile that the simulated GPU and planners read.

    python bench/machine_profile.py --json profile.json [--folder DIR] [--tiny]

Times of the device are medians by CUDA events, times of the host by its clock. Needs torch and a
GPU. Takes about a minute, 2 GiB of device memory, 4 GiB of RAM and 2 GiB of disk in `--folder`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

NO_GPU = 2
REPEATS = 9
MIB = 2**20
SMALL, IN_A_ROW = 4096, 200


@dataclass(frozen=True)
class Sizes:
    """How much is computed and copied: sides of matrices, bytes, and numbers of operations."""

    half: int = 8192
    single: int = 4096
    host_side: int = 4096
    copied: int = 512 * MIB
    file: int = 2048 * MIB
    operations: int = 2000


TINY = Sizes(64, 64, 64, MIB, MIB, 20)
Found = dict[str, tuple[float, str]]
"""By rate: the figure, and how it was measured."""


def by_events(action: Callable[[], object], calls: int = 1) -> float:
    """Return the median seconds of one call, by the device's clock. The first call warms up."""
    taken = []
    for _ in range(REPEATS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(calls):
            action()
        end.record()
        torch.cuda.synchronize()
        taken.append(start.elapsed_time(end) / 1e3 / calls)
    return statistics.median(taken[1:])


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
        seconds = by_events(partial(torch.mm, one, other, out=product))
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
    far, away = (torch.ones(size, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    plain, target = (torch.ones(size, dtype=torch.uint8) for _ in range(2))
    seconds = {
        "bandwidth": by_events(partial(there.copy_, near)),
        "to_device": by_events(partial(near.copy_, far, non_blocking=True)),
        "to_host": by_events(partial(away.copy_, near, non_blocking=True)),
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
            by_events(small, IN_A_ROW),
            f"copy of {SMALL} bytes from pinned memory, {IN_A_ROW} in a row",
        ),
    }
    if torch.cuda.device_count() > 1:
        other = torch.empty(size, dtype=torch.uint8, device="cuda:1")
        taken = by_events(partial(other.copy_, near))
        found["peer"] = size / taken, f"{copied} to another device"
    return found


def launches(sizes: Sizes, device: torch.device) -> Found:
    """Return the seconds that an operation on 1 element takes: of the host, and of the device."""
    one = torch.zeros(1, device=device)
    side = sizes.half
    cover = torch.randn(side, side, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(cover)
    hosts, devices = [], []
    for _ in range(REPEATS + 1):
        torch.cuda.synchronize()
        for _ in range(20):  # the device is busy until all operations are enqueued
            torch.mm(cover, cover, out=product)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        began = time.perf_counter()
        for _ in range(sizes.operations):
            one.add_(1)
        hosts.append((time.perf_counter() - began) / sizes.operations)
        end.record()
        torch.cuda.synchronize()
        devices.append(start.elapsed_time(end) / 1e3 / sizes.operations)
    how = f"{sizes.operations} additions to 1 element"
    return {
        "launch_host": (statistics.median(hosts[1:]), f"{how}, until they are enqueued"),
        "launch_device": (
            statistics.median(devices[1:]),
            f"{how}, enqueued while the device is busy",
        ),
    }


def disk(sizes: Sizes, folder: Path) -> Found:
    """Return the bytes/s of one file, written until it is on the disk, and read from there."""
    block = os.urandom(min(sizes.file, 64 * MIB))
    blocks = sizes.file // len(block)
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        start = time.perf_counter()
        for _ in range(blocks):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        written = time.perf_counter() - start
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        file.seek(0)
        start = time.perf_counter()
        while file.read(len(block)):
            pass
        read = time.perf_counter() - start
    size = blocks * len(block)
    how = f"one file of {size // MIB} MiB in pieces of {len(block) // MIB} MiB"
    return {
        "disk_read": (size / read, f"{how}, after the system was asked to forget it"),
        "disk_write": (size / written, f"{how}, with fsync"),
    }


def profile(sizes: Sizes, device: torch.device, folder: Path) -> dict[str, Any]:
    """Return the profile: `name`, `rates` by name, and `sources`, how each was measured."""
    torch.set_float32_matmul_precision("highest")
    found = products(sizes, device) | copies(sizes, device)
    found |= launches(sizes, device) | disk(sizes, folder)
    properties = torch.cuda.get_device_properties(device)
    rates = {name: value for name, (value, _) in found.items()}
    sources = {name: f"measured: {how}" for name, (_, how) in found.items()}
    if "peer" not in rates:
        rates["peer"] = min(rates["to_device"], rates["to_host"])
        sources["peer"] = "assumed: through the host, as there is one device"
    rates["capacity"] = properties.total_memory
    sources["capacity"] = "measured: as torch reports it"
    return {"name": properties.name, "rates": rates, "sources": sources}


def main() -> int:
    """Measure, print a table, write JSON; return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the profile here")
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="where the disk is measured",
    )
    parser.add_argument("--tiny", action="store_true", help="small sizes: a test of this script")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print(f"machine_profile: torch {torch.__version__} finds no GPU", file=sys.stderr)
        return NO_GPU
    folder = options.folder or Path(tempfile.gettempdir())
    found = profile(TINY if options.tiny else Sizes(), torch.device("cuda", 0), folder)
    print(f"# {found['name']}\n\n| rate | figure | source |\n|---|---|---|")
    for name, value in found["rates"].items():
        print(f"| {name} | {value:.3g} | {found['sources'][name]} |")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
