"""Prints one line of JSON: the GPU, and the software that measures it."""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata
from pathlib import Path

import torch


def versions() -> dict[str, str]:
    """Return the versions of the packages that matter and are installed."""
    found = {}
    for name in ("neaptide", "torch", "triton", "numpy", "pytest", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def facts() -> dict[str, object]:
    """Return what identifies the measured machine; without a GPU the name is None."""
    gpu = torch.cuda.get_device_properties(0) if torch.cuda.is_available() else None
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "name": None if gpu is None else gpu.name,
        "count": torch.cuda.device_count(),
        "memory_bytes": None if gpu is None else gpu.total_memory,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "python": platform.python_version(),
        "processor": next(iter(models), None),
        "cores": len(os.sched_getaffinity(0)),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "versions": versions(),
    }


if __name__ == "__main__":
    print(json.dumps(facts()))
