"""Measures the present memory use of the process, and the peak use since a reset."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from neaptide.api.memory import MemorySample
from neaptide.devices import allocator_count, api_of

if TYPE_CHECKING:
    import torch


def sample(device: torch.device) -> MemorySample:
    """Return the memory in use now, measured in a few microseconds."""
    return MemorySample(allocator_count(device, "memory_allocated"), _resident_bytes())


def _resident_bytes() -> int:
    statm = _statm()
    if statm is None:
        return int(psutil.Process().memory_info().rss)
    return int(os.pread(statm, 128, 0).split()[1]) * mmap.PAGESIZE


@functools.cache
def _statm() -> int | None:
    """Return a descriptor of `statm`, kept open: opening is ten times slower than a read."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:  # not Linux
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_statm.cache_clear)  # it shows the parent's memory


class PeakMeter:
    """Highest device and host bytes since `reset`.

    On Linux the kernel measures the host's peak, including short spikes, and `exact_host` is True.
    On other systems the host's peak is the highest sample.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.reset()

    def reset(self) -> None:
        """Start a new measurement of the peak."""
        self._sampled = 0
        self.exact_host = False
        with contextlib.suppress(OSError):  # not Linux, or /proc is read-only in this container
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.exact_host = True
        if hasattr(api_of(self._device), "reset_peak_memory_stats"):
            api_of(self._device).reset_peak_memory_stats(self._device)

    def note(self, memory: MemorySample) -> None:
        """Include a sample in the peak."""
        self._sampled = max(self._sampled, memory.host_bytes)

    def read(self) -> MemorySample:
        """Return the peaks since `reset`."""
        now = sample(self._device)
        self.note(now)
        device = allocator_count(self._device, "max_memory_allocated") if now.device_bytes else None
        return MemorySample(device, max(self._sampled, _high_water() if self.exact_host else 0))


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
