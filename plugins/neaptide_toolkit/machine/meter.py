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
from neaptide.text import called

if TYPE_CHECKING:
    import torch


def sample(device: torch.device) -> MemorySample:
    """Return the memory in use now, measured in a few microseconds."""
    return MemorySample(allocator_count(device, "memory_allocated"), _resident_bytes())


def _resident_bytes() -> int:
    """Return the process's resident bytes; 0 if the system does not tell (Linux without /proc)."""
    try:
        return int(os.pread(_statm(), 128, 0).split()[1]) * mmap.PAGESIZE
    except OSError:  # not Linux, or no descriptor is free
        with contextlib.suppress(OSError, psutil.Error):
            return int(psutil.Process().memory_info().rss)
        return 0


@functools.cache
def _statm() -> int:
    """Return a descriptor of `statm`, kept open: opening is ten times slower than a read."""
    return os.open("/proc/self/statm", os.O_RDONLY)


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

    def __repr__(self) -> str:
        return called(self, str(self._device))

    def reset(self) -> None:
        """Start a new measurement of the peak."""
        self._sampled = 0
        self.exact_host = False
        with contextlib.suppress(OSError):  # not Linux, or /proc is read-only in this container
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.exact_host = True
        if hasattr(api_of(self._device), "reset_peak_memory_stats"):
            api_of(self._device).reset_peak_memory_stats(self._device)

    def sample(self) -> MemorySample:
        """Return the memory in use now, and include it in the peak."""
        memory = sample(self._device)
        self._sampled = max(self._sampled, memory.host_bytes)
        return memory

    def read(self) -> MemorySample:
        """Return the peaks since `reset`."""
        now = self.sample()
        device = allocator_count(self._device, "max_memory_allocated") if now.device_bytes else None
        return MemorySample(device, max(self._sampled, high_water() if self.exact_host else 0))


def high_water() -> int:
    """Return the most bytes of RAM that this program has had; 0 if the system does not tell.

    `ru_maxrss` tells more: also what the process that started this one had.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_bytes().splitlines():
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0
