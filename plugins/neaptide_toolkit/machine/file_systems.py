"""Which file system a directory is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .cgroups import mounts

if TYPE_CHECKING:
    from pathlib import Path

    from .cgroups import Mount

IN_MEMORY = frozenset({"tmpfs", "ramfs", "rootfs", "devtmpfs"})
"""Types of file systems that keep files in RAM."""


def kind_of(path: Path, mounted: list[Mount] | None = None) -> str | None:
    """Return the type of the file system that holds `path`; None if it is unknown."""
    place = path.resolve()
    kind, longest = None, -1
    # Of two mounts at one path, the later one hides the earlier one.
    for mount in mounts() if mounted is None else mounted:
        if place.is_relative_to(mount.point) and len(mount.point) >= longest:
            kind, longest = mount.kind, len(mount.point)
    return kind
