"""Samples memory: torch's allocator, the process, and the driver where NVML is there."""

from __future__ import annotations

from typing import Any

import attrs
import psutil
import torch


@attrs.frozen
class Sample:
    """Bytes at one moment; None for what this machine cannot tell."""

    rss_bytes: int
    """Resident set size of the process."""
    allocated_bytes: int | None = None
    """Live tensors on the accelerator, by torch's allocator."""
    peak_bytes: int | None = None
    """Most of it since the sample before."""
    reserved_bytes: int | None = None
    """What the allocator holds of the device."""
    nvml_bytes: int | None = None
    """Used on the device by all processes, as the driver counts."""

    @property
    def watched(self) -> int:
        """What is compared from sample to sample: the accelerator's, else the process's."""
        return self.rss_bytes if self.allocated_bytes is None else self.allocated_bytes


class Nvml:
    """The driver's view of one GPU, or the reason there is none."""

    def __init__(self, index: int) -> None:
        self.problem: str | None = None
        try:
            import pynvml  # noqa: PLC0415 - optional: only this plugin knows it

            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            self._nvml: Any = pynvml
        except ImportError:
            self.problem = 'not installed: pip install "neaptide[nvml]"'
        except Exception as error:  # noqa: BLE001 - NVML raises one class a return code
            self.problem = str(error)

    def used_bytes(self) -> int | None:
        """Return the bytes used, or None once the driver has failed to answer."""
        if self.problem is not None:
            return None
        try:
            return int(self._nvml.nvmlDeviceGetMemoryInfo(self._handle).used)
        except Exception as error:  # noqa: BLE001 - as above
            self.problem = str(error)
            return None

    def close(self) -> None:
        """Let the driver go."""
        if self.problem is None:
            self._nvml.nvmlShutdown()


class Probe:
    """Takes samples on one device."""

    def __init__(self, device: torch.device, nvml: Nvml | None) -> None:
        self._device = device
        self._nvml = nvml
        self._process = psutil.Process()

    def capacity(self) -> int:
        """Return the bytes of the accelerator's memory, or of the machine's without one."""
        if self._device.type == "cuda":
            return int(torch.cuda.get_device_properties(self._device).total_memory)
        return int(psutil.virtual_memory().total)

    def sample(self) -> Sample:
        """Measure now; waits for nothing on the device."""
        rss = int(self._process.memory_info().rss)
        used = self._nvml.used_bytes() if self._nvml is not None else None
        if self._device.type != "cuda":
            return Sample(rss, nvml_bytes=used)
        peak = torch.cuda.max_memory_allocated(self._device)
        return Sample(
            rss,
            torch.cuda.memory_allocated(self._device),
            peak,
            torch.cuda.memory_reserved(self._device),
            used,
        )
