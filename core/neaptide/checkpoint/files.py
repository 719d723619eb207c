"""Writes a checkpoint directory. After a crash the old or the new checkpoint is complete.

All files are written and fsynced in a temporary directory in the parent of the target. The manifest
is the last file. Then the previous checkpoint is renamed to `.old-<name>`, and the temporary
directory is renamed to the name of the target.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Self

from neaptide.errors import CheckpointError

from .manifest import (
    MANIFEST,
    FileEntry,
    Manifest,
    check_facts,
    check_name,
    installed_version,
    render,
)
from .recovery import (
    STEP,
    check_replaceable,
    clear_strays,
    discard,
    exists,
    old_of,
    put_back,
    sync_directory,
    temporary_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ELSEWHERE = "set run.dir elsewhere"
_WAY_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space or {_ELSEWHERE}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"permit writing or {_ELSEWHERE}"),
}

_active: set[Path] = set()
"""The temporary directories of all open `writing` contexts in this process."""


class HashedFile:
    """A new file. `write` also computes the sha256, and `close` flushes the data to the disk."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data`; return the number of bytes."""
        if self._descriptor is None:
            msg = "write to a closed file"
            raise ValueError(msg)
        view = memoryview(data).cast("B")
        self._sha256.update(view)
        self.bytes += len(view)
        rest = view
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        return len(view)

    def close(self, *, sync: bool = True) -> None:
        """Close the file. If `sync` is true, first flush the data to the disk. Idempotent."""
        if self._descriptor is None:
            return
        descriptor, self._descriptor = self._descriptor, None
        try:
            if sync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def entry(self) -> FileEntry:
        """Return the digest and size of the written data."""
        return FileEntry(self._sha256.hexdigest(), self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error `Writer.abandon` closes the file, without a flush.
        if kind is None:
            self.close()


class Writer:
    """The new files of one checkpoint, inside the context `writing`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, HashedFile] = {}

    def file(self, name: str) -> HashedFile:
        """Create the data file `name` and open it for writing; the result is a context manager.

        Raises CheckpointError if `check_name` refuses the name, or if the file exists already.
        """
        if name in self._files:
            msg = f"the checkpoint already has a file {name!r}; choose another name"
            raise CheckpointError(msg)
        self._files[name] = HashedFile(self._directory / check_name(name))
        return self._files[name]

    @property
    def bytes(self) -> int:
        """The number of bytes written to all files so far."""
        return sum(file.bytes for file in self._files.values())

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        """Close every file, then write the manifest. On return, all data is on the disk."""
        for file in self._files.values():
            file.close()
        entries = {name: file.entry() for name, file in self._files.items()}
        with HashedFile(self._directory / MANIFEST) as file:
            file.write(render(Manifest(installed_version(), step, entries, facts)))
        sync_directory(self._directory)

    def abandon(self) -> None:
        """Close every file without a flush, because the files will be deleted."""
        for file in self._files.values():
            with suppress(OSError):
                file.close(sync=False)


@contextmanager
def writing(directory: Path, step: int, facts: Mapping[str, Any]) -> Iterator[Writer]:
    """Yield a Writer for the checkpoint `directory`; at the end, replace the previous checkpoint.

    Only one thread of one process may write a directory at a time. `facts` must be plain JSON.
    After an exception the new files are removed and the previous checkpoint stays. An OSError, even
    from the body of the context, becomes a CheckpointError. Raises CheckpointError if `directory`
    exists and is not a checkpoint.
    """
    plain = check_facts(facts)
    given, directory = directory, directory.resolve()
    temporary = temporary_of(directory)
    writer = Writer(temporary)
    _active.add(temporary)
    try:
        _check_not_led_away(given)
        _make_directories(directory.parent)
        check_replaceable(directory)
        clear_strays(directory, _active)
        temporary.mkdir()
        yield writer
        writer.finish(step, plain)
        if exists(directory):
            directory.rename(old_of(directory))
        temporary.rename(directory)
    except BaseException as error:
        writer.abandon()
        # If this rename also fails, `recover` repeats it before the next load.
        with suppress(OSError):
            put_back(directory)
        shutil.rmtree(temporary, ignore_errors=True)
        if isinstance(error, OSError):
            raise _cannot_write(directory, error) from error
        raise
    finally:
        _active.discard(temporary)
    _settle(directory)


def _check_not_led_away(directory: Path) -> None:
    # A run creates `step-N` as a directory. A user may link a directory of any other name.
    if STEP.fullmatch(directory.name) and directory.is_symlink():
        msg = f"{directory} is a symbolic link, so that saving would write elsewhere; remove it"
        raise CheckpointError(msg)


def _settle(directory: Path) -> None:
    try:
        sync_directory(directory.parent)
    except OSError as error:
        msg = f"{directory} is written but may not survive a power failure: {error.strerror}"
        raise CheckpointError(msg) from error
    # If this fails, the new checkpoint is still complete; the old files only take disk space.
    with suppress(OSError):
        discard(old_of(directory))


def _cannot_write(directory: Path, error: OSError) -> CheckpointError:
    way_out = _WAY_OUT.get(error.errno or 0, f"check the disk or {_ELSEWHERE}")
    return CheckpointError(
        f"cannot write checkpoint {directory}: {error.strerror or error}; {way_out}; "
        "the previous checkpoint is intact"
    )


def _make_directories(path: Path) -> None:
    missing = [parent for parent in (path, *path.parents) if not exists(parent)]
    path.mkdir(parents=True, exist_ok=True)
    for made in missing:
        sync_directory(made.parent)
