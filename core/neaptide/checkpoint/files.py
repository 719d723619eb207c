"""Writing a checkpoint directory so that a crash at any point leaves the old or the new one.

Data goes to a temporary directory beside the target, each file is fsynced, the manifest is written
last, and renames put it in place. `.old-<name>` is the previous one while that happens.
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
    from types import TracebackType

_ELSEWHERE = "set run.dir elsewhere"
_WAY_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space or {_ELSEWHERE}"),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"permit writing or {_ELSEWHERE}"),
}

_active: set[Path] = set()
"""Temporaries being written by this process, of which each belongs to one `writing`."""


class HashedFile:
    """A new file that is hashed while it is written, and on the disk once it is closed."""

    def __init__(self, path: Path) -> None:
        self._descriptor: int | None = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
        )
        self._sha256 = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Write all of `data` and return its number of bytes."""
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
        return FileEntry(self._sha256.hexdigest(), self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # After an error it stays open for `Writer.abandon`: no use in flushing half a file.
        if kind is None:
            self.close()


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

    @property
    def bytes(self) -> int:
        """Bytes written so far, in all files."""
        return sum(file.bytes for file in self._files.values())

    def finish(self, step: int, facts: dict[str, Any]) -> None:
        """Close every file, then write the manifest: all of it is on the disk afterwards."""
        for file in self._files.values():
            file.close()
        entries = {name: file.entry() for name, file in self._files.items()}
        with HashedFile(self._directory / MANIFEST) as file:
            file.write(render(Manifest(installed_version(), step, entries, facts)))
        sync_directory(self._directory)

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
        # Loading puts it back as well, if that fails here; the error below says what failed first.
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
    # A link under another name is the user's own way of saving elsewhere; a run makes directories.
    if STEP.fullmatch(directory.name) and directory.is_symlink():
        msg = f"{directory} is a symbolic link, so that saving would write elsewhere; remove it"
        raise CheckpointError(msg)


def _settle(directory: Path) -> None:
    try:
        sync_directory(directory.parent)
    except OSError as error:
        msg = f"{directory} is written but may not survive a power failure: {error.strerror}"
        raise CheckpointError(msg) from error
    # The checkpoint is in place: what is left of the previous one costs space until the next save.
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
