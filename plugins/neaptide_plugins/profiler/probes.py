"""Samples memory: torch's allocator, the process, and the driver where NVML is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import psutil
import torch

if TYPE_CHECKING:
    from .nvml import Nvml


@attrs.frozen(kw_only=True)
class Sample:
    """Bytes at one moment; None for what this machine cannot tell."""

    allocated_bytes: int | None = None
    """Live tensors on the accelerator, by torch's allocator."""
    peak_bytes: int | None = None
    """The allocator's high-water mark. Nothing here resets it: others read it as well."""
    reserved_bytes: int | None = None
    """What the allocator holds of the device."""
    rss_bytes: int
    """Resident set size of the process."""
    nvml_bytes: int | None = None
    """Used on the device by all processes, as the driver counts."""

    def tiers(self) -> dict[str, tuple[int, int]]:
        """Return the bytes held now and the highest known mark, by tier."""
        tiers = {"host": (self.rss_bytes, self.rss_bytes)}
        if self.allocated_bytes is not None:
            mark = max(self.allocated_bytes, self.peak_bytes or 0)
            tiers = {"device": (self.allocated_bytes, mark), **tiers}
        return tiers


class Probe:
    """Takes samples on one device."""

    def __init__(self, device: torch.device, nvml: Nvml | None) -> None:
        self._device = device
        self._nvml = nvml
        self._process = psutil.Process()

    def capacities(self) -> dict[str, int]:
        """Return the bytes each tier has in this machine."""
        capacities = {"host": int(psutil.virtual_memory().total)}
        if self._device.type == "cuda":
            properties = torch.cuda.get_device_properties(self._device)
            capacities = {"device": int(properties.total_memory), **capacities}
        return capacities

    def sample(self) -> Sample:
        """Measure now; waits for nothing on the device."""
        rss = int(self._process.memory_info().rss)
        if self._device.type != "cuda":
            return Sample(rss_bytes=rss)
        # Once, as it comes: memory_allocated() and its like flatten and sort all of it, each.
        stats = torch.cuda.memory_stats_as_nested_dict(self._device)
        allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
        return Sample(
            allocated_bytes=allocated["current"],
            peak_bytes=allocated["peak"],
            reserved_bytes=reserved["current"],
            rss_bytes=rss,
            nvml_bytes=self._nvml.used_bytes() if self._nvml is not None else None,
        )


def uuid_of(device: torch.device) -> str:
    """Return the UUID by which the driver knows a CUDA device, as `"GPU-…"`."""
    return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
