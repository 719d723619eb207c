"""The machine that is planned: this one, a profile's, or one with so many GiB."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import psutil
import torch

from neaptide.devices import api_of
from neaptide.errors import ConfigError
from neaptide.run.assembly import choose_device
from neaptide_toolkit.machine import facts, profiles
from neaptide_toolkit.machine.devices import free_bytes, total_bytes

if TYPE_CHECKING:
    from neaptide_toolkit.dry_run.processes.places import Processes
    from neaptide_toolkit.machine.profiles import Machine, Rates

GIB = 2**30
CONTEXT = 877_461_504 + 2 * 33_554_432 + 2**20
"""Bytes of a device that CUDA takes: its context, cuBLAS's workspaces of forward and backward, and
cuBLASLt's. Measured on an H100 with CUDA 13 and torch 2.11 (docs/benchmarks/gpu.md)."""


@attrs.frozen(kw_only=True)
class PlannedMachine:
    """A machine. A CPU has no memory of its own, so `device` is None."""

    name: str
    device: int | None
    """Bytes of the device's memory."""
    host: int | None
    """Bytes of RAM; None if the system does not tell."""
    disk: int | None = None
    """Bytes of the disk that are free for training; None if they are unknown."""
    rates: Rates | None
    """None if nobody knows how fast the machine is."""
    processes: Processes | None = None
    """The processes of the run, if it has several. The memory and the rates are of a whole node."""

    @property
    def kind(self) -> str:
        """Return the kind of the device in PyTorch."""
        return "cpu" if self.device is None else "cuda"


def target(
    device: str | float | Machine | PlannedMachine | None,
    ram: float | None,
    configured: str = "auto",
    *,
    disk: float | None = None,
    disk_rate: float | None = None,
) -> PlannedMachine:
    """Return the machine that `--device`, `--ram`, `--disk` and `--disk-rate` name.

    Args:
        device: a profile or its name, a number of GiB, `cpu`, a machine, or None for this machine's
            device.
        ram: GiB; None for this machine's RAM.
        configured: the value of `train.device`; it counts if `device` is None.
        disk: GB that are free; None if they are unknown.
        disk_rate: GB/s that the disk reads, and that it writes; None for the profile's rates.

    Raises:
        ConfigError: there is no such machine.
    """
    if ram is not None and not ram > 0:
        msg = f"a machine has more than 0 GiB of RAM (got {ram:g} @ --ram)"
        raise ConfigError(msg)
    for flag, value, unit in (("--disk", disk, "GB"), ("--disk-rate", disk_rate, "GB/s")):
        if value is not None and not value > 0:
            msg = f"a disk has more than 0 {unit} (got {value:g} @ {flag})"
            raise ConfigError(msg)
    found = _target(device, ram, configured)
    if disk is not None:
        found = attrs.evolve(found, disk=int(disk * 1e9))
    if disk_rate is not None and found.rates is not None:
        rates = attrs.evolve(found.rates, disk_read=disk_rate * 1e9, disk_write=disk_rate * 1e9)
        found = attrs.evolve(found, rates=rates)
    return found


def _target(
    device: str | float | Machine | PlannedMachine | None, ram: float | None, configured: str
) -> PlannedMachine:
    if isinstance(device, PlannedMachine):
        return device if ram is None else attrs.evolve(device, host=int(ram * GIB))
    host = facts.memory().limit if ram is None else int(ram * GIB)
    if device is None:
        return _measured(_this(choose_device(configured, None), host))
    if device == "cpu":
        return PlannedMachine(name="a CPU", device=None, host=host, rates=None)
    try:
        gib = float(device)  # type: ignore[arg-type]  # a profile is refused
    except (TypeError, ValueError):
        found = device
        if isinstance(device, str):
            found = profiles.load(Path(device) if device.endswith(".json") else device)
        if not isinstance(found, profiles.Machine):
            msg = f"a machine is a profile, its name or a number of GiB (got {device!r:.80})"
            raise ConfigError(msg) from None
        return PlannedMachine(
            name=found.name, device=found.rates.capacity, host=host, rates=found.rates
        )
    if not 0 < gib < float("inf"):
        msg = f"a device has more than 0 GiB (got {device} @ --device)"
        raise ConfigError(msg)
    return PlannedMachine(
        name=f"a GPU of {gib:g} GiB", device=int(gib * GIB), host=host, rates=None
    )


def free_now(configured: str) -> PlannedMachine:
    """Return this machine, with the memory that this process can have now.

    Args:
        configured: the value of `train.device`.
    """
    device = choose_device(configured, None)
    ram = facts.memory()
    room = None if ram.room is None else ram.room + psutil.Process().memory_info().rss
    host = min((one for one in (ram.limit, room) if one is not None), default=None)
    this = _measured(_this(device, host))
    if this.device is None:
        return this
    free = free_bytes(device) or 0
    reserved = getattr(api_of(device), "memory_reserved", lambda _: 0)(device)
    # A plan counts what CUDA takes, which is no longer free here.
    return attrs.evolve(this, device=free + reserved + CONTEXT)


def _measured(this: PlannedMachine) -> PlannedMachine:
    """Return this machine with the rates that `neaptide doctor --bench` has measured on it."""
    path = profiles.measured_path()
    if not path.exists():
        return this
    found = profiles.load(path)
    known = (facts.processor().model or "CPU") if this.device is None else this.name
    return attrs.evolve(this, rates=found.rates) if found.name == known else this


def _this(device: torch.device, host: int | None) -> PlannedMachine:
    nbytes = None if device.type == "cpu" else total_bytes(device)
    if nbytes is None:
        return PlannedMachine(name="this machine's CPU", device=None, host=host, rates=None)
    name = torch.get_device_module(device).get_device_properties(device).name
    return PlannedMachine(name=name, device=nbytes, host=host, rates=None)
