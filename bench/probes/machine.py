"""Reads facts about this machine: GPU, driver, link, memory, and limits of memory."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from probes.checks import GIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from probes.checks import Check, Finding

CGROUPS = Path("/sys/fs/cgroup")
UNLIMITED = 2**60  # cgroups of version 1 report at least this number if there is no limit
GPU_FIELDS = (
    "driver_version",
    "pcie.link.gen.current",
    "pcie.link.gen.max",
    "pcie.link.width.current",
    "pcie.link.width.max",
    "power.limit",
    "clocks.max.sm",
)


def number_in(path: Path) -> int | None:
    """Return the number in a file. None if the file does not exist or contains "max"."""
    try:
        text = path.read_text().strip()
    except OSError:  # some kernels and versions of cgroups lack the file
        return None
    return int(text) if text.isdigit() else None


def meminfo() -> dict[str, int]:
    """Return the values of /proc/meminfo in bytes."""
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    return {name.rstrip(":"): int(value) * 1024 for name, value, *_ in lines}


def cgroup_folders() -> list[Path]:
    """Return the cgroup folders whose memory limits apply to this process, innermost first."""
    folders = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "memory" in controllers.split(","):
            root = CGROUPS if number == "0" else CGROUPS / "memory"
            inner = root / path.lstrip("/")
            folders += [
                inner,
                *(parent for parent in inner.parents if root in (parent, *parent.parents)),
            ]
    return folders


def cgroup_limit_and_room() -> tuple[int, int] | None:
    """Return the memory limit that is closest to being reached, and the bytes left below it.

    None if there is no limit.
    """
    found = []
    for folder in cgroup_folders():
        for limit_file, usage_file, cache_key in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, usage = number_in(folder / limit_file), number_in(folder / usage_file)
            if limit is not None and usage is not None and limit < UNLIMITED:
                lines = (folder / "memory.stat").read_text().splitlines()
                reclaimable = int(dict(line.split() for line in lines).get(cache_key, "0"))
                found.append((limit - usage + reclaimable, limit))
    if not found:
        return None
    room, limit = min(found)
    return limit, room


def host_room() -> int:
    """Return the number of bytes that this process can still allocate."""
    limited = cgroup_limit_and_room()
    available = meminfo()["MemAvailable"]
    return available if limited is None else min(available, limited[1])


def gpu(device: torch.device) -> Finding:
    """Return the GPU's properties as torch reports them."""
    properties = torch.cuda.get_device_properties(device)
    return {
        "summary": (
            f"{properties.name}, compute capability {properties.major}.{properties.minor}, "
            f"{properties.total_memory / GIB:.1f} GiB, {properties.multi_processor_count} SMs"
        ),
        "model": properties.name,
        "memory_bytes": properties.total_memory,
    }


def driver_and_link(device: torch.device) -> Finding:
    """Return driver, PCIe link, power limit and clock limit from nvidia-smi."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {"summary": "nvidia-smi is not installed"}
    uuid = torch.cuda.get_device_properties(device).uuid
    command = [
        program,
        f"--id=GPU-{uuid}",
        f"--query-gpu={','.join(GPU_FIELDS)}",
        "--format=csv,noheader",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)  # noqa: S603 - a fixed command
    values = dict(zip(GPU_FIELDS, answer.stdout.strip().split(", "), strict=True))
    return {"summary": ", ".join(f"{key} {value}" for key, value in values.items()), **values}


def software() -> Finding:
    """Return the versions of the software with which the figures were measured."""
    versions = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    return {"summary": ", ".join(f"{key} {value}" for key, value in versions.items()), **versions}


def host_memory() -> Finding:
    """Return the installed memory, the cgroup's memory limit, and the available memory."""
    total, limited, room = meminfo()["MemTotal"], cgroup_limit_and_room(), host_room()
    limit = "no cgroup limit" if limited is None else f"cgroup limit {limited[0] / GIB:.1f} GiB"
    return {
        "summary": f"{total / GIB:.1f} GiB, {limit}, {room / GIB:.1f} GiB available now",
        "total_bytes": total,
        "cgroup_limit_bytes": None if limited is None else limited[0],
        "room_bytes": room,
    }


def processor() -> Finding:
    """Return the host's processor and the number of threads that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "unnamed")
    usable = len(os.sched_getaffinity(0))
    summary = (
        f"{name}, {usable} of {os.cpu_count()} threads usable, torch uses {torch.get_num_threads()}"
    )
    return {"summary": summary, "model": name, "usable_threads": usable}


def huge_pages() -> Finding:
    """Return the kernel's setting for transparent huge pages."""
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return {"summary": path.read_text().strip()}


def checks(device: torch.device, *, size: str) -> Iterator[Check]:
    """Yield all checks; `size` has no effect, because all of them are quick."""
    del size
    yield "GPU", partial(gpu, device)
    yield "driver and link, idle", partial(driver_and_link, device)
    yield "software", software
    yield "processor", processor
    yield "host memory", host_memory
    yield "transparent huge pages", huge_pages
