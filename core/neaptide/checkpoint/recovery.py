"""The names of temporary and previous checkpoints; recovery and cleanup after a crash."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import psutil

from neaptide.errors import CheckpointError

from .verify import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STEP = re.compile(r"step-(\d{8,})")
"""The names of checkpoints in `checkpoints/` of a run directory."""

_OLD = ".old-"
_TEMPORARY = re.compile(r"\.tmp-.+-(\d{1,7})-[0-9a-f]{8}\.neaptide")


def old_of(directory: Path) -> Path:
    """Return the path that the previous checkpoint has while `directory` is replaced."""
    return directory.with_name(f"{_OLD}{directory.name}")


def temporary_of(directory: Path) -> Path:
    """Return a new path in the parent of `directory`. Its last part contains the process id."""
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return directory.with_name(f".tmp-{directory.name}-{unique}.neaptide")


def recover(directory: Path) -> None:
    """Rename the previous checkpoint back, after a crash between the two renames of a save."""
    directory = directory.resolve()
    try:
        put_back(directory)
    except OSError as error:
        msg = f"cannot rename {old_of(directory)} back to {directory}: {error.strerror}"
        raise CheckpointError(msg) from error


def put_back(directory: Path) -> None:
    """Do the same as `recover`, but take a resolved path and raise errors as OSError."""
    if not exists(directory) and exists(old_of(directory)):
        old_of(directory).rename(directory)
        sync_directory(directory.parent)


def interrupted(root: Path) -> Iterator[Path]:
    """Yield each path in `root` to which `recover` would rename a checkpoint."""
    for path in root.glob(f"{_OLD}*"):
        directory = path.with_name(path.name.removeprefix(_OLD))
        if not exists(directory):
            yield directory


def discard(directory: Path) -> None:
    """Rename a checkpoint, then delete it. A crash never leaves half a checkpoint at `directory`.

    Raises OSError if the rename fails. If a file cannot be deleted now, the next save deletes it.
    """
    for path in (old_of(directory), directory):
        if exists(path):
            temporary = temporary_of(path)
            path.rename(temporary)
            with suppress(OSError):
                _delete(temporary)


def check_replaceable(directory: Path) -> None:
    """Raise CheckpointError if `directory` or its `.old-` path exists but is not a checkpoint."""
    for path in (directory, old_of(directory)):
        if exists(path) and not _is_checkpoint(path):
            msg = f"{path} exists and is not a checkpoint; move it away or save elsewhere"
            raise CheckpointError(msg)


def clear_strays(directory: Path, active: set[Path]) -> None:
    """Delete replaced checkpoints, and temporary directories that no process writes.

    Only the parent of `directory` is searched. `active` are the temporary directories that this
    process writes now. All other temporary directories of this process are deleted.
    """
    for path in list(directory.parent.iterdir()):
        replaced = path.name.removeprefix(_OLD)
        # A directory that cannot be deleted only takes disk space, so the save continues.
        with suppress(OSError):
            if path not in active and _is_abandoned(path.name):
                _delete(path)
            elif replaced != path.name and (
                (replaced == directory.name or STEP.fullmatch(replaced))
                and exists(path.with_name(replaced))
            ):
                discard(path)


def _delete(path: Path) -> None:
    if path.is_symlink():  # the target belongs to the user
        path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)


def sync_directory(path: Path) -> None:
    """Flush the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def exists(path: Path) -> bool:
    """Return whether `path` exists; raise any OSError that does not mean a missing file."""
    # Path.exists returns False on some errors. Then a save could rename a wrong directory.
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _is_abandoned(name: str) -> bool:
    match = _TEMPORARY.fullmatch(name)
    if match is None:
        return False
    pid = int(match[1])
    if pid == os.getpid():
        return True
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _is_checkpoint(path: Path) -> bool:
    # A damaged checkpoint can be recognised only by its name.
    if not path.is_dir():
        return False
    if STEP.fullmatch(path.name.removeprefix(_OLD)) or not any(path.iterdir()):
        return True
    try:
        read_manifest(path)
    except CheckpointError:
        return False
    return True
