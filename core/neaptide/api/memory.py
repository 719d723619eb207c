"""Bytes by (phase, moment, tier): the ledger that estimates, and the probes that measure."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import attrs
import psutil
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

Tier = Literal["device", "host", "disk"]
Moment = Literal["forward", "backward", "update", "predict", "evaluate", "save"]

MOMENTS: tuple[Moment, ...] = ("forward", "backward", "update", "predict", "evaluate", "save")


@attrs.frozen
class Entry:
    """Bytes one owner holds on one tier during some moments of the phase."""

    owner: str
    """Who holds them: `core`, or a plugin's name."""
    kind: str
    """What they are: `weights`, `gradients`, `optimizer.state`, `activations`, …"""
    tier: Tier
    bytes: int
    moments: frozenset[Moment] = frozenset(MOMENTS)


@attrs.frozen
class Ledger:
    """What one phase is expected to hold. Immutable: plugins return a changed copy.

    Plugins are folded over it in resolved order, so one that moves weights to the host sees what
    those before it left.
    """

    entries: tuple[Entry, ...] = ()

    def add(
        self,
        owner: str,
        kind: str,
        tier: Tier,
        nbytes: int,
        moments: Iterable[Moment] = MOMENTS,
    ) -> Ledger:
        """Return a ledger with `nbytes` more bytes held by `owner`."""
        entry = Entry(owner, kind, tier, int(nbytes), frozenset(moments))
        return Ledger((*self.entries, entry))

    def move(
        self,
        kind: str,
        source: Tier,
        target: Tier | None,
        nbytes: int | None = None,
        moments: Iterable[Moment] = MOMENTS,
    ) -> Ledger:
        """Return a ledger in which what is of `kind` on `source` lies on `target`.

        All of it, or the first `nbytes` of it, during `moments`. A target of None gives it up.
        """
        during, left, moved = frozenset(moments), nbytes, []
        for entry in self.entries:
            if (entry.kind, entry.tier) != (kind, source) or not entry.moments & during:
                moved.append(entry)
                continue
            part = entry.bytes if left is None else min(left, entry.bytes)
            left = None if left is None else left - part
            if target is not None:
                there = attrs.evolve(entry, tier=target, bytes=part)
                moved.append(attrs.evolve(there, moments=entry.moments & during))
            moved += [
                attrs.evolve(entry, bytes=part, moments=entry.moments - during),
                attrs.evolve(entry, bytes=entry.bytes - part),
            ]
        return Ledger(tuple(entry for entry in moved if entry.bytes and entry.moments))

    def scale(self, kind: str, factor: float) -> Ledger:
        """Return a ledger in which everything of `kind` takes `factor` times its bytes."""
        return Ledger(
            tuple(
                attrs.evolve(entry, bytes=round(entry.bytes * factor))
                if entry.kind == kind
                else entry
                for entry in self.entries
            )
        )

    def total(
        self,
        *,
        tier: Tier | None = None,
        moment: Moment | None = None,
        owner: str | None = None,
        kind: str | None = None,
    ) -> int:
        """Return the bytes of the entries that match; None matches all."""
        return sum(
            entry.bytes
            for entry in self.entries
            if (tier is None or entry.tier == tier)
            and (moment is None or moment in entry.moments)
            and (owner is None or entry.owner == owner)
            and (kind is None or entry.kind == kind)
        )

    def peak(self, tier: Tier) -> tuple[Moment, int]:
        """Return the moment at which `tier` holds most, and the bytes it then holds."""
        totals = {moment: self.total(tier=tier, moment=moment) for moment in MOMENTS}
        worst = max(MOMENTS, key=lambda moment: totals[moment])
        return worst, totals[worst]


@attrs.frozen
class MemorySample:
    """What the process holds now, in bytes."""

    device_bytes: int | None
    """Live tensors by torch's allocator on the accelerator; None on a machine without one."""
    host_bytes: int
    """Resident set size of the process."""


def tier_of(device: torch.device, compute: torch.device) -> Tier:
    """Return the tier of a tensor on `device` in a run that computes on `compute`."""
    return "device" if device.type == compute.type else "host"


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the distinct storages behind `tensors`."""
    storages = {
        (storage.device, storage.data_ptr()): storage.nbytes()
        for storage in (tensor.untyped_storage() for tensor in tensors)
    }
    return sum(storages.values())


def nested_tensors(tree: object) -> Iterable[torch.Tensor]:
    """Yield every tensor in nested dicts, lists and tuples."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from nested_tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from nested_tensors(value)


def sample(device: torch.device) -> MemorySample:
    """Measure now; costs a few microseconds."""
    allocated = torch.cuda.memory_allocated(device) if device.type == "cuda" else None
    return MemorySample(allocated, _resident_bytes())


def _resident_bytes() -> int:
    statm = _statm()
    if statm is None:
        return int(psutil.Process().memory_info().rss)
    return int(os.pread(statm, 128, 0).split()[1]) * mmap.PAGESIZE


@functools.cache
def _statm() -> int | None:
    """Return a descriptor that stays open: a tenth of the time it takes to open it anew."""
    try:
        return os.open("/proc/self/statm", os.O_RDONLY)
    except OSError:  # not Linux
        return None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_statm.cache_clear)  # it tells of the parent


class PeakMeter:
    """Highest device and host bytes since `reset`, where the system keeps such a mark.

    On Linux the kernel's own high-water mark is reset and read, so short spikes between two
    samples count; elsewhere the highest sample stands in and says so through `exact_host`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampled = 0
        self.exact_host = False
        self.reset()

    def reset(self) -> None:
        """Forget the peak so far."""
        self._sampled = 0
        self.exact_host = False
        with contextlib.suppress(OSError):  # not Linux, or /proc is read-only in this container
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self.exact_host = True
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)

    def note(self, memory: MemorySample) -> None:
        """Take a sample into account."""
        self._sampled = max(self._sampled, memory.host_bytes)

    def read(self) -> MemorySample:
        """Return the peaks since `reset`."""
        now = sample(self._device)
        self.note(now)
        device = torch.cuda.max_memory_allocated(self._device) if now.device_bytes else None
        return MemorySample(device, max(self._sampled, _high_water() if self.exact_host else 0))


def _high_water() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0
