"""GPUs, processor and memory."""

from __future__ import annotations

import os
import shutil
from math import ceil
from typing import TYPE_CHECKING

from neaptide.api.records import Finding
from neaptide.io.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from neaptide_toolkit.machine.facts import Gpu, Memory, Processor, Torch

_PINNED_TRIAL = 64 << 20
_SHARED_ENOUGH = 1 << 30
_MOSTLY = 0.5
_LITTLE_ROOM = 0.1


def gpus(torch: Torch, driver: str | None) -> Iterator[Finding]:
    """Yield the findings on the driver and on the GPUs that torch reports."""
    yield _driver(torch, driver)
    for gpu in torch.gpus:
        yield _gpu(gpu)
    if torch.gpus:
        yield _pinned(torch.gpus[0].kind)
    else:
        yield Finding("ok", "pinned memory", "not applicable on the CPU")


def _driver(torch: Torch, driver: str | None) -> Finding:
    if torch.gpus:
        return Finding("ok", "driver", driver or "its version is unknown")
    if driver and torch.build == "CPU":
        detail = f"{driver} is installed, but this torch is built for the CPU"
        advice = "pip install --force-reinstall --index-url https://pypi.org/simple torch"
        return Finding("warning", "driver", detail, advice)
    if driver:
        detail = f"{driver} is installed, but torch finds no GPU: {torch.problem or 'none visible'}"
        return Finding("warning", "driver", detail, "nvidia-smi")
    reason = f" ({torch.problem})" if torch.problem else ""
    return Finding("note", "driver", f"none: training runs on the CPU{reason}")


def _gpu(gpu: Gpu) -> Finding:
    import torch  # noqa: PLC0415 - torch is already imported here

    from neaptide.devices import api_of  # noqa: PLC0415 - imports torch
    from neaptide_toolkit.machine.devices import free_bytes  # noqa: PLC0415 - imports torch

    what = f"{gpu.kind}:{gpu.index}"
    detail = f"{gpu.name}, {size(gpu.memory_bytes)}"
    if gpu.capability:
        detail = f"{detail}, compute capability {gpu.capability}"
    try:
        free = free_bytes(torch.device(gpu.kind, gpu.index))
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        return Finding("error", what, f"{detail}; cannot be used: {reason}", "nvidia-smi")
    if free is None:
        return Finding("ok", what, f"{detail}, shared with the processor")
    detail = f"{detail}, {size(free)} free"
    is_nvidia = gpu.capability and torch.version.hip is None
    if is_nvidia and not runs_on(gpu.capability, api_of(gpu.kind).get_arch_list()):
        detail = f"{detail}; this torch has no kernels for it"
        return Finding("error", what, detail, "install a torch built for this GPU: pytorch.org")
    if free < _MOSTLY * gpu.memory_bytes:
        return Finding("warning", what, f"{detail}: other processes use the rest", "nvidia-smi")
    return Finding("ok", what, detail)


def runs_on(capability: str, built_for: Iterable[str]) -> bool:
    """Return whether kernels built for `sm_80`, `compute_90`, … run on a GPU of `capability`.

    Machine code (`sm`) runs on GPUs of the same major version and an equal or higher minor version.
    Code of type `compute` can be compiled for any GPU of an equal or higher version.
    """
    major, minor = map(int, capability.split("."))
    for name in built_for:
        kind, _, digits = name.partition("_")
        digits = digits.rstrip("af")
        if not digits.isdecimal():
            continue
        theirs = int(digits[:-1]), int(digits[-1])
        if theirs <= (major, minor) and (kind == "compute" or theirs[0] == major):
            return True
    return False


def _pinned(kind: str) -> Finding:
    import torch  # noqa: PLC0415 - as above

    from neaptide_toolkit.machine.devices import lacks  # noqa: PLC0415 - imports torch

    reason = lacks(torch.device(kind), "pinned copies")
    if reason is not None:
        return Finding("ok", "pinned memory", f"not applicable: {reason}")
    try:
        torch.empty(_PINNED_TRIAL, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as error:
        reason = str(error).strip().partition("\n")[0]
        detail = f"{size(_PINNED_TRIAL)} cannot be pinned: {reason}"
        return Finding("warning", "pinned memory", detail, "ulimit -l unlimited")
    return Finding("ok", "pinned memory", f"{size(_PINNED_TRIAL)} could be pinned")


def processor(cpu: Processor, torch: Torch | None) -> Iterator[Finding]:
    """Yield the findings on the number of CPUs, and on the number of threads that torch starts."""
    yield Finding("ok", "CPU", cpu.model or "its model is unknown")
    quota = "no cgroup quota" if cpu.quota is None else f"cgroup quota {cpu.quota:g}"
    detail = f"{cpu.count or '?'} in the machine, {cpu.affinity or '?'} for this process, {quota}"
    yield Finding("ok", "CPUs", detail)
    if torch is None:
        return
    usable = ceil(cpu.usable or torch.threads)
    if torch.threads > usable:
        detail = f"{torch.threads} threads on {cpu.usable:g} CPUs wait for one another"
        yield Finding("warning", "torch threads", detail, f"export OMP_NUM_THREADS={usable}")
    else:
        yield Finding("ok", "torch threads", str(torch.threads))


def memory(ram: Memory, shared: Path) -> Iterator[Finding]:
    """Yield the findings on the host's memory. `shared` is the mount point of shared memory."""
    if ram.total is None or ram.available is None:
        yield Finding("note", "RAM", "its size is unknown")
    else:
        yield Finding("ok", "RAM", f"{size(ram.total)}, {size(ram.available)} available")
    if ram.group is None:
        yield Finding("ok", "cgroup limit", "none")
    else:
        detail = f"{size(ram.group.limit)}, {size(ram.group.room)} of it free"
        yield Finding("ok", "cgroup limit", detail)
    if ram.limit is not None and ram.room is not None:
        yield _effective(ram.limit, ram.room)
    yield _swap(ram)
    locked = "no limit" if ram.locked_limit is None else size(ram.locked_limit)
    yield Finding("ok", "locked memory", f"{locked} (ulimit -l)")
    yield _shared(shared)


def _effective(limit: int, room: int) -> Finding:
    detail = f"{size(limit)}, {size(room)} of it free for this process"
    if room >= _LITTLE_ROOM * limit:
        return Finding("ok", "effective limit", detail)
    advice = "end other processes that use memory, or raise the limit: docker run --memory=…"
    return Finding("warning", "effective limit", detail, advice)


def _swap(ram: Memory) -> Finding:
    if ram.swap_total is None or ram.swap_free is None:
        return Finding("note", "swap", "its size is unknown")
    if ram.swap_total == 0:
        return Finding("ok", "swap", "none: a process that runs out of memory is killed")
    return Finding("ok", "swap", f"{size(ram.swap_total)}, {size(ram.swap_free)} free")


def _shared(path: Path) -> Finding:
    try:
        total, _, free = shutil.disk_usage(path)
    except OSError as error:
        return Finding("note", str(path), f"cannot be examined: {os.strerror(error.errno or 0)}")
    detail = f"{size(total)}, {size(free)} free"
    if total >= _SHARED_ENOUGH:
        return Finding("ok", str(path), detail)
    detail = f"{detail}: little for the workers of a DataLoader"
    return Finding("warning", str(path), detail, "docker run --shm-size=8g, or num_workers=0")
