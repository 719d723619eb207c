"""Decides how much stays in RAM, and opens the files for the rest."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from neaptide.io.units import size
from neaptide_toolkit.machine.facts import memory
from neaptide_toolkit.machine.pretended import is_pretended, ram_of
from neaptide_toolkit.offload.disk import PretendedFile, TierFile, Transfers

from .homes import DiskTier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from ..config import LayerStreamingConfig

MOVABLE = ("weights", "optimizer state")
"""The uses of RAM, in a `StreamingPlan`, that may be on the disk."""
_SHARE = 0.75
"""Share of the free RAM that is used if no limit is set."""


def least(room: int | None, gib: float | None) -> int | None:
    """Return the smaller of `room` (bytes) and `gib` (GiB), in bytes; None if both are None."""
    allowed = None if gib is None else int(gib * 1024**3)
    return min((value for value in (room, allowed) if value is not None), default=None)


def ram_for_homes(config: LayerStreamingConfig, needed: Mapping[str, int]) -> int:
    """Return how many bytes of weights and optimizer state stay in RAM.

    Args:
        config: its limits, where they are set.
        needed: bytes of RAM by use, those that may be on the disk included.
    """
    if config.ram_gib is not None:
        return int(config.ram_gib * 2**30)
    room = ram_of() if is_pretended() else memory().room
    fixed = sum(bytes_ for use, bytes_ in needed.items() if use not in MOVABLE)
    whole = int((room or 0) * _SHARE) if config.host_gib is None else least(room, config.host_gib)
    return max(0, (whole or 0) - fixed)


def opened(config: LayerStreamingConfig, device: torch.device, ram: int, most: int) -> DiskTier:
    """Open a file in each directory of the config.

    Args:
        config: its `path` names the directories.
        device: the device that computes.
        ram: bytes that stay in RAM.
        most: bytes that the files will hold at most.

    Raises:
        ValueError: a directory is not on a disk, or the disks have no room.
    """
    folders = [Path(name) for name in paths(config)]
    if is_pretended():
        return DiskTier(tuple(map(PretendedFile, folders)), ram)
    if sys.platform != "linux":
        msg = "tier = 'disk' needs Linux, whose files can be read past the page cache"
        raise ValueError(msg)
    transfers = Transfers(device)
    files = tuple(TierFile(folder, transfers) for folder in folders)
    _check_room(folders, most // len(folders))
    return DiskTier(files, ram)


def _check_room(folders: Sequence[Path], share: int) -> None:
    """Raise ValueError if a directory is named twice, or a disk has no room for its shares."""
    named: dict[tuple[int, int], Path] = {}
    together: dict[int, list[Path]] = {}
    for folder in folders:
        found = folder.stat()
        first = named.setdefault((found.st_dev, found.st_ino), folder)
        if first is not folder:
            msg = f"path names one directory twice: {str(first)!r} and {str(folder)!r}; remove one"
            raise ValueError(msg)
        together.setdefault(found.st_dev, []).append(folder)
    for there in together.values():
        free, needed = shutil.disk_usage(there[0]).free, share * len(there)
        if needed > free:
            names = " and ".join(repr(str(folder)) for folder in there)
            msg = (
                f"tier = 'disk' needs {size(needed)} ({needed} bytes) in {names}, of which "
                f"{size(free)} is free; raise ram_gib, choose an optimizer with less state, or "
                f"name another disk"
            )
            raise ValueError(msg)


def paths(config: LayerStreamingConfig) -> tuple[str, ...]:
    """Return the directories of `path`."""
    named = config.path
    return (named,) if isinstance(named, str) else named or ()
