"""Samples memory: torch's allocator, the process, and the driver if NVML is installed."""

from __future__ import annotations

import os
import re
from functools import partial
from mmap import PAGESIZE
from typing import TYPE_CHECKING, NamedTuple

import psutil

from neaptide.devices import api_of
from neaptide_toolkit.machine.devices import total_bytes

if TYPE_CHECKING:
    import torch

    from .nvml import Nvml

_MARK = re.compile(rb"VmHWM:\s+(\d+) kB\s+VmRSS:\s+(\d+) kB")  # since the program began
_APART = 1 << 20
"""Bytes by which the two counts of a process may differ, because the kernel adds them up late."""


class ByteSample(NamedTuple):
    """Bytes at one moment: a row of memory.csv. A value that is unknown on this machine is None."""

    allocated_bytes: int | None
    """Bytes of live tensors on the accelerator. torch's allocator counts these bytes."""
    peak_bytes: int | None
    """The allocator's high-water mark (largest value so far) of `allocated_bytes`.

    The profiler never resets this mark, because other code reads it.
    """
    reserved_bytes: int | None
    """Device memory that the allocator has reserved."""
    rss_bytes: int
    """Resident set size of the process."""
    rss_peak_bytes: int | None
    """The kernel's high-water mark of `rss_bytes`, on Linux. The profiler never resets it."""
    nvml_bytes: int | None
    """Device memory that all processes use. The driver reports this number."""
    gpu_utilization: int | None
    """Percentage of time with a running kernel, in the driver's last period."""

    def tiers(self) -> tuple[tuple[str, int, int], ...]:
        """Return for each tier (`device`, `host`): name, bytes in use now, high-water mark."""
        host = ("host", self.rss_bytes, max(self.rss_bytes, self.rss_peak_bytes or 0))
        if self.allocated_bytes is None:
            return (host,)
        mark = max(self.allocated_bytes, self.peak_bytes or 0)
        return (("device", self.allocated_bytes, mark), host)


class ResidentSet:
    """Reads the resident set size of this process and the high-water mark of this size.

    On Linux a read is a system call on an open descriptor of `statm`, and one of `getrusage`: about
    3 microseconds, where `status` takes 15. But `ru_maxrss` begins with the size of the process
    that started this one. If they differ at first, `status` is read.
    """

    def __init__(self, folder: str = "/proc/self") -> None:
        self._process = psutil.Process()
        self._descriptor, self._status = -1, -1
        if os.path.exists(f"{folder}/statm"):  # noqa: PTH110 - a path of the kernel's
            import resource  # noqa: PLC0415 - absent on other systems

            self._usage = partial(resource.getrusage, resource.RUSAGE_SELF)
            self._status = os.open(f"{folder}/status", os.O_RDONLY)
            _, mark = self._of_status()
            if mark is not None and abs(self._usage().ru_maxrss * 1024 - mark) <= _APART:
                self._descriptor = os.open(f"{folder}/statm", os.O_RDONLY)

    def read(self) -> tuple[int, int | None]:
        """Return the resident bytes, and their high-water mark (None if it cannot be read)."""
        if self._descriptor >= 0:
            now = int(os.pread(self._descriptor, 128, 0).split()[1]) * PAGESIZE
            return now, self._usage().ru_maxrss * 1024
        return self._of_status()

    def _of_status(self) -> tuple[int, int | None]:
        if self._status >= 0 and (found := _MARK.search(os.pread(self._status, 4096, 0))):
            return int(found[2]) * 1024, int(found[1]) * 1024
        return int(self._process.memory_info().rss), None

    def close(self) -> None:
        """Close the descriptor; idempotent. `read` still works, by psutil."""
        descriptors = {self._descriptor, self._status} - {-1}
        self._descriptor = self._status = -1
        for descriptor in descriptors:
            os.close(descriptor)


class Probe:
    """Takes samples on one device.

    Args:
        device: the run's device.
        nvml: reads the same device from the driver, if the device is CUDA.
        host_bytes: the host memory that the process may use; None if it may use all memory of the
            machine.
    """

    def __init__(
        self, device: torch.device, nvml: Nvml | None = None, host_bytes: int | None = None
    ) -> None:
        self._device = device
        self._host_bytes = host_bytes or int(psutil.virtual_memory().total)
        self._nvml = nvml
        self._resident = ResidentSet()
        self._statistics = getattr(api_of(device), "memory_stats_as_nested_dict", None)

    def capacities(self) -> dict[str, int]:
        """Return the capacity of each tier for this process, in bytes."""
        capacities = {"host": self._host_bytes}
        total = total_bytes(self._device)
        return capacities if total is None else {"device": total, **capacities}

    def sample(self) -> ByteSample:
        """Return a sample without waiting for the device."""
        rss, rss_peak = self._resident.read()
        if self._statistics is None:
            return ByteSample(None, None, None, rss, rss_peak, None, None)
        # One call reads all values: each call of memory_allocated() and similar functions would
        # flatten and sort all statistics.
        stats = self._statistics(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        driver = self._nvml.reading() if self._nvml is not None else None
        return ByteSample(
            allocated["current"],
            allocated["peak"],
            reserved["current"],
            rss,
            rss_peak,
            driver.used_bytes if driver else None,
            driver.utilization if driver else None,
        )

    def close(self) -> None:
        """Close the descriptor of /proc/self/status; idempotent."""
        self._resident.close()


def uuid_of(device: torch.device) -> str:
    """Return the UUID by which the driver knows a CUDA device, without `GPU-` or `MIG-`."""
    return str(api_of(device).get_device_properties(device).uuid)
