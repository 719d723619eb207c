"""Writing a checkpoint directory so that a crash at any point leaves the old or the new one.

Data goes to a temporary directory beside the target, each file is fsynced, the manifest is written
last, and renames put it in place. `.old-<name>` is the previous one while that happens.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psutil

from neaptide.errors import CheckpointError

from .manifest import MANIFEST, FileEntry, Manifest, check_facts, check_name, installed_version
from .manifest import render
from .verify import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

STEP = re.compile(r"step-(\d{8,})")

_OLD = ".old-"
_TEMPORARY = re.compile(r"\.tmp-.+-(\d+)-[0-9a-f]{8}\.neaptide")
_ELSEWHERE = "set run.dir elsewhere"
_WAY_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space or {_ELSEWHERE}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"permit writing or {_ELSEWHERE}"),
}

_active: set[Path] = set()
"""Temporaries this process is writing now; all others that carry its pid are leftovers."""


class HashedFile:
    """A new file that is hashed while it is written, and on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        self._sha256 = hashlib.sha256()
        self._bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data` and return its number of bytes."""
        if self._descriptor is None:
            msg = "write to a closed file"
            raise ValueError(msg)
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        self._bytes += len(view)
        rest = view
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(view)

    def close(self, *, sync: bool = True) -> None:
        """Flush to the disk and close; nothing if closed already."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entry(self) -> FileEntry:
        """Return digest and size of what was written."""
        return FileEntry(self._sha256.hexdigest(), self._bytes)

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close(sync=kind is None)


class Writer:
    """The files of one checkpoint under construction; `writing` makes and finishes it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, HashedFile] = {}

    def file(self, name: str) -> HashedFile:
        """Create the data file `name` and return it, open for writing and a context manager.

        Raises CheckpointError if the name has other than letters, digits, `.`, `_`, `-`, or is
        taken.
        """
        if name in self._files:
            msg = f"a checkpoint has one file {name!r}; choose another name"
            raise CheckpointError(msg)
        self._files[name] = HashedFile(self._directory / check_name(name))
        return self._files[name]

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        """Close every file, then write the manifest: all of it is on the disk afterwards."""
        for file in self._files.values():
            file.close()
        entries = {name: file.entry() for name, file in self._files.items()}
        with HashedFile(self._directory / MANIFEST) as file:
            file.write(render(Manifest(installed_version(), step, entries, facts)))
        _sync_directory(self._directory)

    def abandon(self) -> None:
        """Close every file; what is in them no longer matters."""
        for file in self._files.values():
            with suppress(OSError):
                file.close(sync=False)


@contextmanager
def writing(directory: Path, step: int, facts: Mapping[str, Any]) -> Iterator[Writer]:
    """Write the checkpoint `directory`, replacing the one that may be there; give its Writer.

    One thread of one process writes a given directory at a time. `facts` must be plain JSON. An
    exception removes what was written and leaves the previous checkpoint; OSErrors, those of the
    body too, become CheckpointErrors. So does a directory that is something else.
    """
    plain = check_facts(facts)
    directory = directory.resolve()
    temporary = _temporary(directory)
    writer = Writer(temporary)
    _active.add(temporary)
    try:
        _prepare(directory)
        temporary.mkdir()
        yield writer
        writer.finish(step, plain)
        if _exists(directory):
            directory.rename(_old(directory))
        temporary.rename(directory)
    except BaseException as error:
        writer.abandon()
        # The error below says what failed; the next load or save repeats what fails here as well.
        with suppress(CheckpointError):
            recover(directory)
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise _cannot_write(directory, error) from error
        raise
    finally:
        _active.discard(temporary)
    _settle(directory)


def recover(directory: Path) -> None:
    """Put the previous checkpoint back at `directory` if a crash came between the two renames.

    Called before loading and before saving, by the process that owns the run directory. Raises
    CheckpointError if it cannot be renamed.
    """
    directory = directory.resolve()
    old = _old(directory)
    try:
        if not _exists(directory) and _exists(old):
            old.rename(directory)
            _sync_directory(directory.parent)
    except OSError as error:
        msg = f"cannot rename {old} back to {directory}: {error.strerror}; do so by hand"
        raise CheckpointError(msg) from error


def discard(directory: Path) -> None:
    """Delete a checkpoint; a crash in the middle leaves no half of one under its name.

    Raises OSError if it cannot be renamed; what cannot be deleted then, the next save clears.
    """
    temporary = _temporary(directory)
    directory.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def interrupted(root: Path) -> Iterator[Path]:
    """Yield the directories in `root` whose checkpoint `recover` would put back."""
    for path in root.glob(f"{_OLD}*"):
        directory = root / path.name.removeprefix(_OLD)
        if not _exists(directory):
            yield directory


def _prepare(directory: Path) -> None:
    _make_directories(directory.parent)
    recover(directory)
    for path in (directory, _old(directory)):
        if _exists(path) and not _replaceable(path):
            msg = f"{path} exists and is not a checkpoint; move it away or save elsewhere"
            raise CheckpointError(msg)
    _clear_strays(directory)


def _settle(directory: Path) -> None:
    try:
        _sync_directory(directory.parent)
    except OSError as error:
        msg = f"{directory} is written but may not survive a power failure: {error.strerror}"
        raise CheckpointError(msg) from error
    # The checkpoint is in place: what is left of the previous one costs space until the next save.
    with suppress(OSError):
        if _exists(_old(directory)):
            discard(_old(directory))


def _clear_strays(directory: Path) -> None:
    for path in list(directory.parent.iterdir()):
        name = path.name.removeprefix(_OLD)
        # A stray costs space, never a checkpoint: one that cannot be deleted is no reason to fail.
        with suppress(OSError):
            if _is_abandoned(path):
                shutil.rmtree(path)
            elif name != path.name and (name == directory.name or STEP.fullmatch(name)):
                if _exists(path.with_name(name)):
                    discard(path)


def _is_abandoned(path: Path) -> bool:
    match = _TEMPORARY.fullmatch(path.name)
    if match is None or path in _active:
        return False
    pid = int(match[1])
    if pid == os.getpid():
        return True
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _replaceable(path: Path) -> bool:
    # A damaged one is told from a stranger's directory by its name alone.
    if not path.is_dir():
        return False
    if STEP.fullmatch(path.name.removeprefix(_OLD)) or not any(path.iterdir()):
        return True
    try:
        read_manifest(path)
    except CheckpointError:
        return False
    return True


def _cannot_write(directory: Path, error: OSError) -> CheckpointError:
    way_out = _WAY_OUT.get(error.errno or 0, f"check the disk or {_ELSEWHERE}")
    return CheckpointError(
        f"cannot write checkpoint {directory}: {error.strerror or error}; {way_out}; "
        "the previous checkpoint is intact"
    )


def _make_directories(path: Path) -> None:
    missing = [parent for parent in (path, *path.parents) if not _exists(parent)]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        _sync_directory(made.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exists(path: Path) -> bool:
    # pathlib's takes some errors for an absence, and an absence decides what is renamed.
    try:
        path.lstat()
    except FileNotFoundError:
        return False
    return True


def _old(directory: Path) -> Path:
    return directory.with_name(f"{_OLD}{directory.name}")


def _temporary(directory: Path) -> Path:
    unique = f"{os.getpid()}-{secrets.token_hex(4)}"
    return directory.with_name(f".tmp-{directory.name}-{unique}.neaptide")
