"""Facts about this machine: processor, memory, Python, torch and its devices.

An unknown fact is None, or missing from a list; no error is raised. torch is
imported by `torch_facts` and `facts` only.
"""

from __future__ import annotations

import os
import platform
import re
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import attrs
import psutil

from neaptide.hooks.registry import installed_plugins

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None  # type: ignore[assignment]

from . import cgroups
from .pretended import is_pretended


@attrs.frozen
class Processor:
    """The number of the machine's CPUs, and how many of them this process may use."""

    model: str | None
    count: int | None
    """Logical CPUs of the machine."""
    affinity: int | None
    """Logical CPUs this process may run on."""
    quota: float | None
    """CPU time per second that the tightest cgroup allows, in CPUs; None without a limit."""

    @property
    def usable(self) -> float | None:
        """Return the CPU time per second that this process can use, in CPUs."""
        known = [float(n) for n in (self.affinity or self.count, self.quota) if n]
        return min(known, default=None)


@attrs.frozen
class Memory:
    """The host's memory, in bytes."""

    total: int | None
    available: int | None
    """The system's estimate of the bytes that can be allocated without swapping."""
    group: cgroups.MemoryGroup | None
    """The tightest cgroup limit; None without a limit."""
    swap_total: int | None
    swap_free: int | None
    locked_limit: int | None
    """Bytes a process may lock (RLIMIT_MEMLOCK); None without a limit."""
    process_room: int | None = None
    """Bytes that this process may still allocate under RLIMIT_DATA and RLIMIT_AS; None if unset."""

    @property
    def limit(self) -> int | None:
        """Return the smaller of the machine's memory and the cgroup's limit."""
        return _smallest(self.total, self.group.limit if self.group else None)

    @property
    def room(self) -> int | None:
        """Return how many bytes can still be allocated within all memory limits."""
        group = self.group.room if self.group else None
        return _smallest(self.available, group, self.process_room)


@attrs.frozen
class Gpu:
    """One accelerator; `index` is the device index that torch uses."""

    index: int
    name: str
    memory_bytes: int
    capability: str
    """Compute capability, such as `9.0`; empty unless the GPU is used by CUDA or ROCm."""
    kind: str = "cuda"
    """The kind of device in torch; ROCm is `cuda`, too."""


@attrs.frozen
class Torch:
    """The imported torch and the GPUs it finds."""

    version: str
    build: str
    """The platform torch was compiled for: `CPU`, `CUDA 13.0`, `ROCm 6.4`, `XPU …` or `MPS`."""
    threads: int
    """Number of threads that one CPU operation uses."""
    gpus: tuple[Gpu, ...]
    problem: str | None
    """The reason why a build for GPUs finds no GPU; None otherwise."""


def processor(root: Path = cgroups.ROOT) -> Processor:
    """Return facts about the CPUs; `root` is the directory that contains `proc` and `sys`."""
    affinity = None
    if hasattr(os, "sched_getaffinity"):
        affinity = len(os.sched_getaffinity(0))
    return Processor(_cpu_model(root), os.cpu_count(), affinity, cgroups.cpus(root))


def memory(root: Path = cgroups.ROOT) -> Memory:
    """Return facts about the host's memory; cgroups are read from `proc` and `sys` in `root`."""
    total = available = swap_total = swap_free = None
    if is_pretended():
        return Memory(total, available, None, swap_total, swap_free, None)
    with suppress(OSError, RuntimeError, ValueError, KeyError):  # psutil without /proc
        now = psutil.virtual_memory()
        total, available = int(now.total), int(now.available)
    with suppress(OSError, RuntimeError, ValueError, KeyError):
        swap = psutil.swap_memory()
        swap_total, swap_free = int(swap.total), int(swap.free)
    group = cgroups.memory(root)
    return Memory(total, available, group, swap_total, swap_free, _locked_limit(), _process_room())


def _locked_limit() -> int | None:
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _process_room() -> int | None:
    if resource is None:
        return None
    rooms = []
    with suppress(OSError, ValueError):  # not Linux
        text = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        lines = [line.split() for line in text.splitlines() if line.endswith(" kB")]
        used = {name: int(kilobytes) * 1024 for name, kilobytes, _ in lines}
        for kind, name in ((resource.RLIMIT_DATA, "VmData:"), (resource.RLIMIT_AS, "VmSize:")):
            soft, _ = resource.getrlimit(kind)
            if soft != resource.RLIM_INFINITY and name in used:
                rooms.append(max(0, soft - used[name]))
    return min(rooms, default=None)


def driver_version(root: Path = cgroups.ROOT) -> str | None:
    """Return the version of NVIDIA's kernel driver, such as `580.65.06`; None without a driver."""
    for name in ("sys/module/nvidia/version", "proc/driver/nvidia/version"):
        with suppress(OSError):
            found = re.search(r"\d+\.\d+(\.\d+)?", (root / name).read_text(encoding="utf-8"))
            if found is not None:
                return found[0]
    return None


def torch_facts(*, initialize: bool = True) -> Torch:
    """Import torch and return facts about it; raise any error of the import.

    GPUs are listed only if CUDA (or XPU) is initialized. If `initialize` is true, this function
    initializes it.
    """
    import torch  # noqa: PLC0415 - the other facts need no torch

    build = _build(torch)
    device = None if build == "CPU" else torch.accelerator.current_accelerator()
    gpus: tuple[Gpu, ...] = ()
    problem = None
    if device is not None:
        api = torch.get_device_module(device)
        try:
            if initialize and hasattr(api, "init"):
                api.init()  # the error says why that fails
            if getattr(api, "is_initialized", api.is_available)():
                gpus = tuple(_gpu(device.type, api, index) for index in range(api.device_count()))
        except (RuntimeError, AssertionError) as error:
            problem = str(error).strip().partition("\n")[0]
    return Torch(str(torch.__version__), build, torch.get_num_threads(), gpus, problem)


def _build(torch: Any) -> str:
    version = torch.version
    for name, number in (("ROCm", "hip"), ("CUDA", "cuda"), ("XPU", "xpu")):
        if getattr(version, number, None):
            return f"{name} {getattr(version, number)}"
    # A damaged torch may have no backends.
    return "MPS" if hasattr(torch, "backends") and torch.backends.mps.is_built() else "CPU"


def facts() -> dict[str, Any]:
    """Import torch and return the content of a run's machine.json.

    The content has no name of a host or user, and no path. A run on the CPU does not initialize
    CUDA, so the machine.json of such a run lists no GPUs.
    """
    framework = attrs.asdict(torch_facts(initialize=False))
    gpus = framework.pop("gpus")
    return {**host_facts(), "torch": framework, "gpus": list(gpus)}


def host_facts() -> dict[str, Any]:
    """Return the part of `facts` that does not need torch."""
    ram = memory()
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "architecture": platform.machine(),
        "cpu": attrs.asdict(processor()),
        "memory": {
            "total_bytes": ram.total,
            "cgroup_limit_bytes": ram.group.limit if ram.group else None,
            "limit_bytes": ram.limit,
        },
        "driver": driver_version(),
        "distributions": distributions(),
    }


def distributions() -> dict[str, str]:
    """Return the versions of neaptide, torch, numpy, triton and each plugin's distribution."""
    shipping = (found.distribution.split() for found in installed_plugins().installed.values())
    plugins = dict(shipped for shipped in shipping if len(shipped) == len(("name", "version")))
    named = {name: installed(name) for name in ("neaptide", "torch", "numpy", "triton")}
    return {**plugins, **{name: version for name, version in named.items() if version}}


def installed(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _gpu(kind: str, api: Any, index: int) -> Gpu:
    if not hasattr(api, "get_device_properties"):  # MPS, whose memory is the machine's
        return Gpu(index, "GPU of the processor", int(api.recommended_max_memory()), "", kind)
    found = api.get_device_properties(index)
    capability = f"{found.major}.{found.minor}" if hasattr(found, "major") else ""
    return Gpu(index, found.name, int(found.total_memory), capability, kind)


def _cpu_model(root: Path) -> str | None:
    with suppress(OSError):
        text = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
        found = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
        if found is not None:
            return found[1].strip()
    return platform.processor() or None


def _smallest(*known: int | None) -> int | None:
    return min((value for value in known if value is not None), default=None)
