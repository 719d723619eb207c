"""The names of temporary and previous checkpoints; recovery and cleanup after a crash."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import closing, suppress
from typing import TYPE_CHECKING

import psutil

from neaptide.errors import CheckpointError
from neaptide.io.folder import Folder, is_held, resolved
from neaptide.text import shorten

from .manifest import STEP
from .verify import OF_A_RUN, read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OLD = ".old-"
_TEMPORARY = re.compile(r"\.tmp-.+-(\d{1,7})-[0-9a-f]{8}\.neaptide")


def old_of(directory: Path) -> Path:
    """Return the path that the previous checkpoint has while `directory` is replaced."""
    return directory.with_name(f"{_OLD}{directory.name}")


def temporary_of(directory: Path) -> Path:
    """Return a new path in the parent of `directory`. Its last part contains the process id."""
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return directory.with_name(f".tmp-{directory.name}-{unique}.neaptide")


def place_of(directory: Path) -> Path:
    """Follow links, but not in place of what a run makes: `step-N`, `frozen-N` and their folder."""
    if is_held(directory):
        return directory
    if not OF_A_RUN.fullmatch(directory.name):
        return resolved(directory)
    return resolved(directory.parent.parent) / directory.parent.name / directory.name


def recover(directory: Path) -> None:
    """Rename the previous checkpoint back, after a crash between the two renames of a save."""
    place = place_of(directory)
    try:
        if not exists(place) and exists(old_of(place)):
            folder = Folder(place.parent, link=False)
            folder.rename(old_of(place).name, place.name)
            folder.sync()
    except OSError as error:
        msg = f"cannot rename {old_of(place)} back to {place}: {error.strerror}"
        raise CheckpointError(msg) from error


def entries(root: Path) -> list[Path]:
    """Return what is in `root`, sorted; nothing if it is no directory.

    Raises CheckpointError if `root` cannot be read.
    """
    try:
        with closing(Folder(root)) as folder:
            return [root / name for name in folder.names()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        msg = f"cannot list {shorten(str(root), 300)}: {error.strerror}"
        raise CheckpointError(msg) from error


def interrupted(root: Path) -> Iterator[Path]:
    """Yield each path in `root` to which `recover` would rename a checkpoint."""
    for path in entries(root):
        directory = path.with_name(path.name.removeprefix(_OLD))
        if path.name.startswith(_OLD) and not exists(directory):
            yield directory


def discard(folder: Folder, name: str) -> None:
    """Rename a checkpoint, then delete it. A crash never leaves half a checkpoint under its name.

    Raises OSError if the rename fails. If a file cannot be deleted now, the next save deletes it.
    """
    for found in (f"{_OLD}{name}", name):
        if folder.stat(found) is not None:
            temporary = temporary_of(folder.path / found).name
            folder.rename(found, temporary)
            with suppress(OSError):
                folder.remove(temporary)


def check_replaceable(directory: Path) -> None:
    """Raise CheckpointError if `directory` or its `.old-` path exists but is not a checkpoint."""
    for path in (directory, old_of(directory)):
        if exists(path) and not _is_checkpoint(path):
            msg = f"{path} exists and is not a checkpoint; move it away or save elsewhere"
            raise CheckpointError(msg)


def clear_strays(folder: Folder, name: str, active: set[str]) -> None:
    """Delete replaced checkpoints, and temporary directories that no process writes.

    `name` is the checkpoint that is saved now. `active` are the temporary directories that this
    process writes now. All other temporary directories of this process are deleted.
    """
    for found in folder.names():
        replaced = found.removeprefix(_OLD)
        # A directory that cannot be deleted only takes disk space, so the save continues.
        with suppress(OSError):
            if found not in active and _is_abandoned(found):
                folder.remove(found)
            elif replaced != found and (
                (replaced == name or STEP.fullmatch(replaced)) and folder.stat(replaced) is not None
            ):
                discard(folder, found)


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
    try:
        with closing(Folder(path, link=False)) as folder:
            if not STEP.fullmatch(path.name.removeprefix(_OLD)) and folder.names():
                read_manifest(path)
    except (CheckpointError, NotADirectoryError):
        return False
    return True
