"""Run all examinations once. torch is imported before the first examination that needs torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.hooks.registry import installed_plugins
from neaptide_toolkit.machine import facts as machine
from neaptide_toolkit.machine.drives import Worn, drives_of, worn

from . import disk, hardware, plugins, processes, software, tier
from .report import Report, Section

if TYPE_CHECKING:
    from neaptide_toolkit.machine.drives import Drive
    from neaptide_toolkit.machine.facts import Torch

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - only examined, not written to


def examine(directory: Path, *, trial: bool, link: processes.Link | None = None) -> Report:
    """Return the report on this machine.

    Args:
        directory: the directory of runs. It need not exist, and is not created.
        trial: whether to measure the disk's speed. That takes about two seconds.
        link: what this process has measured with the others of its group.
    """
    imported = software.import_all()
    torch = imported.torch
    cpu, ram, place = machine.processor(), machine.memory(), disk.nearest(directory)
    on_disk = disk.examine(place, trial=trial)
    drives = {drive: worn(drive) for drive in drives_of(place)}
    streams = trial and imported.works and on_disk.problem is None
    rates = tier.measure(place, on_disk.free) if streams else None
    sections = (
        Section(
            "Software", (*software.basics(imported), *([software.triton(torch)] if torch else []))
        ),
        Section("GPUs", tuple(hardware.gpus(torch, machine.driver_version())) if torch else ()),
        Section("Memory", tuple(hardware.memory(ram, _SHARED_MEMORY))),
        Section("Processor", tuple(hardware.processor(cpu, torch))),
        Section("Processes", tuple(processes.findings(link)) if imported.works else ()),
        Section("Disk", (*disk.findings(on_disk), *tier.findings(rates, drives))),
        Section("Environment", tuple(software.environment(os.environ, torch))),
        Section("Extras", tuple(software.extras())),
        Section("Plugins", tuple(plugins.findings(manifests_only=not imported.works))),
    )
    facts = {
        **machine.host_facts(),
        "memory": {**attrs.asdict(ram), "limit": ram.limit, "room": ram.room},
        "torch": attrs.asdict(torch) if torch else None,
        "torch_import_seconds": imported.seconds,
        "disk": attrs.asdict(on_disk),
        "tier": attrs.asdict(rates) if isinstance(rates, tier.TierRates) else None,
        "drives": [_worn(*each) for each in drives.items()],
        "link": attrs.asdict(link) if link else None,
        "environment": software.variables(os.environ),
        "plugins": _plugins(),
    }
    return Report(tuple(part for part in sections if part.findings), facts, _device(torch))


def _plugins() -> list[dict[str, Any]]:
    return [
        {"name": found.name, "distribution": found.distribution, "problem": found.problem}
        for found in installed_plugins().installed.values()
    ]


def _worn(drive: Drive, found: Worn | str) -> dict[str, Any]:
    known = attrs.asdict(found) if isinstance(found, Worn) else {"written": None, "used": None}
    return {**attrs.asdict(drive), **known}


def _device(torch: Torch | None) -> str:
    names = [gpu.name for gpu in torch.gpus] if torch else []
    return " and ".join(dict.fromkeys(names)) or "the CPU"
