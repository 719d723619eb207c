"""The disk of the run directory: whether it is writable, its free space and its speed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from neaptide.api.records import Finding
from neaptide.io.units import size
from neaptide_toolkit.machine.file_systems import IN_MEMORY, kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

MEASURED = 64 << 20
_BLOCK = 8 << 20
_LITTLE = 2 << 30
_SLOW = 50e6
_ELSEWHERE = "set run.dir to a directory on another disk"
_NETWORK = frozenset(
    {"9p", "afs", "ceph", "cifs", "lustre", "nfs", "nfs4", "smb3", "beegfs", "gpfs", "fuse.sshfs"}
)


@attrs.frozen
class Speed:
    """The speed of a short sequential write and of a short sequential read, in bytes per second."""

    write: float
    """Speed of writing with fsync after every 8 MiB, as checkpoints are written."""
    read: float
    """Speed of reading without the page cache, if the system allows a program to drop the cache."""


@attrs.frozen
class Disk:
    """The file system of one directory; sizes in bytes."""

    path: str
    kind: str | None
    total: int
    free: int
    speed: Speed | None
    problem: str | None
    """The reason why writing fails; None if writing works or was not tried."""


def nearest(path: Path) -> Path:
    """Return `path`, or the closest directory above it that exists."""
    path = path.absolute()
    places = (path, *path.parents)
    # Path.is_dir raises for a name that is too long or in an unreadable directory.
    return next((place for place in places if os.path.isdir(place)), Path("/"))  # noqa: PTH112 - see above


def examine(path: Path, *, trial: bool, nbytes: int = MEASURED, seconds: float = 0.5) -> Disk:
    """Examine the file system of the existing directory `path`. With `trial`, measure its speed.

    The trial writes at most `nbytes` to an unnamed file, and reads the file. Each takes about
    `seconds`.
    """
    total, _, free = shutil.disk_usage(path)
    speed = problem = None
    if trial:
        try:
            speed = measure(path, min(nbytes, free // 2), seconds)
        except OSError as error:
            problem = error.strerror or type(error).__name__
    return Disk(str(path), kind_of(path), total, free, speed, problem)


def measure(directory: Path, nbytes: int, seconds: float) -> Speed:
    """Write up to `nbytes` in `directory` and read them back. OSError if the system refuses."""
    block = os.urandom(max(1, min(_BLOCK, nbytes)))  # zeros would be compressed
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        number, start, written = file.fileno(), time.perf_counter(), 0
        while written < max(1, nbytes) and time.perf_counter() - start < seconds:
            written += os.write(number, block)
            os.fsync(number)
        write = written / (time.perf_counter() - start)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(number, 0, 0, os.POSIX_FADV_DONTNEED)
        start, read = time.perf_counter(), 0
        while time.perf_counter() - start < seconds:
            got = len(os.pread(number, _BLOCK, read))
            read += got
            if got == 0:
                break
        return Speed(write, read / (time.perf_counter() - start))


def findings(disk: Disk) -> Iterator[Finding]:
    """Yield the findings on a disk."""
    yield Finding("ok", "directory", f"{disk.path} ({disk.kind or 'unknown file system'})")
    free = f"{size(disk.free)} of {size(disk.total)}"
    if disk.free >= _LITTLE:
        yield Finding("ok", "free", free)
    else:
        yield Finding("warning", "free", free, _ELSEWHERE)
    if disk.kind in IN_MEMORY:
        detail = f"{disk.kind} keeps files in RAM: they use memory and are lost at a restart"
        yield Finding("warning", "durability", detail, _ELSEWHERE)
    if disk.kind in _NETWORK:
        detail = f"{disk.kind} is a network file system: saving waits for the network"
        yield Finding("note", "durability", detail, _ELSEWHERE)
    if disk.problem is not None:
        detail = f"cannot write in {disk.path}: {disk.problem}"
        yield Finding("error", "writing", detail, _ELSEWHERE)
    if disk.speed is not None:
        yield _judged(disk.speed)


def _judged(speed: Speed) -> Finding:
    detail = f"{size(int(speed.write))}/s written and synced, {size(int(speed.read))}/s read"
    if speed.write >= _SLOW:
        return Finding("ok", "speed", detail)
    advice = "set run.dir to a faster disk, or save less often with run.checkpoint_every"
    return Finding("warning", "speed", detail, advice)
