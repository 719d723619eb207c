"""Writes a checkpoint directory. After a crash the old or the new checkpoint is complete.

All files are written and fsynced in a temporary directory beside the target, the manifest last.
Then the previous checkpoint is renamed to `.old-<name>`, and the directory to the target's name.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self

from neaptide.errors import CheckpointError
from neaptide.io.folder import Folder
from neaptide.io.locking import direct

from .catalog import checkpoints
from .manifest import (
    MANIFEST,
    STEP,
    FileEntry,
    Manifest,
    check_facts,
    check_name,
    installed_version,
    render,
)
from .recovery import (
    check_replaceable,
    clear_strays,
    discard,
    old_of,
    place_of,
    recover,
    temporary_of,
)
from .verify import rooms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    Way = Callable[[Path, AbstractContextManager["Writer"], Callable[["Writer"], None]], None]

_ELSEWHERE = "set run.dir elsewhere"
_WAY_OUT = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), f"free space or {_ELSEWHERE}"),
    errno.EMFILE: "raise ulimit -n",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), f"permit writing or {_ELSEWHERE}"),
}

_PIECE = 4 << 20
"""Bytes written at once."""

_active: set[str] = set()
"""The temporary directories of all open `writing` contexts in this process."""


class HashedFile:
    """A new file. `write` copies; one thread computes the sha256, and another one writes by `put`.

    Whole pieces go past the page cache if the file system lets them. `close` flushes the data.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._file, self._open = folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), True
        self._direct = direct(self._file, wanted=True)
        self._sha256, self.put = hashlib.sha256(), os.write
        self._ring = rooms(_PIECE, self._sha256.update, self._write)
        self._room, self._used, self.bytes = next(self._ring), 0, 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take all of `data`; return the number of bytes."""
        if not self._open:
            msg = "write to a closed file"
            raise ValueError(msg)
        view = rest = memoryview(data).cast("B")
        while rest:
            part, rest = rest[: _PIECE - self._used], rest[_PIECE - self._used :]
            self._room[self._used : self._used + len(part)] = part
            self._used += len(part)
            if self._used == _PIECE:
                self._room, self._used = self._ring.send(_PIECE), 0
        self.bytes += len(view)
        return len(view)

    def _write(self, piece: memoryview) -> None:
        while piece:
            try:
                piece = piece[self.put(self._file, piece) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._direct = direct(self._file, wanted=False)

    def close(self, *, sync: bool = True) -> None:
        """Close the file. If `sync` is true, first flush the data to the disk. Idempotent."""
        if not self._open:
            return
        self._open = False
        try:
            if sync:
                next(self._ring, None)
                self._direct = direct(self._file, wanted=False)  # the rest is no whole piece
                self._sha256.update(rest := self._room[: self._used])
                self._write(rest)
                os.fsync(self._file)
        finally:
            self._ring.close()
            os.close(self._file)

    def entry(self) -> FileEntry:
        """Return the digest and size of the written data."""
        return FileEntry(self._sha256.hexdigest(), self.bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # After an error `Writer.close` closes the file, without a flush.
        if kind is None:
            self.close()


class Writer:
    """The new files of one checkpoint, inside the context `writing`."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._files: dict[str, HashedFile] = {}

    def file(self, name: str, kind: Callable[[Folder, str], Any] = HashedFile) -> HashedFile:
        """Let `kind` create and open the data file `name`; the result is a context manager.

        Raises CheckpointError if `check_name` refuses the name, or if the file exists already.
        """
        if name in self._files:
            msg = f"the checkpoint already has a file {name!r}; choose another name"
            raise CheckpointError(msg)
        self._files[name] = kind(self._folder, check_name(name))
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
        with HashedFile(self._folder, MANIFEST) as file:
            file.write(render(Manifest(installed_version(), step, entries, facts)))
        self._folder.sync()

    def close(self) -> None:
        """Close the files that are still open without a flush: they will be deleted."""
        for file in self._files.values():
            with suppress(OSError):
                file.close(sync=False)


@contextmanager
def writing(directory: Path, step: int, facts: Mapping[str, Any]) -> Iterator[Writer]:
    """Yield a Writer for the checkpoint `directory`; at the end, replace the previous checkpoint.

    Only one thread of one process may write a directory at a time. `facts` must be plain JSON.
    After an exception the new files are removed and the previous checkpoint stays. An OSError, even
    from the body, becomes a CheckpointError. So does a `directory` that is not a checkpoint.
    """
    plain, place = check_facts(facts), place_of(directory)
    name, temporary = place.name, temporary_of(place).name
    _active.add(temporary)
    try:
        _check_named(place, step)
        with closing(Folder(place.parent, make=True, link=False)) as folder:
            check_replaceable(place)
            clear_strays(folder, name, _active)
            new = folder.folder(temporary, make=True)
            with closing(new), closing(Writer(new)) as writer:
                yield writer
                writer.finish(step, plain)
            if folder.stat(name) is not None:
                folder.rename(name, old_of(place).name)
            folder.rename(temporary, name)
            _settle(folder, place)
    except BaseException as error:
        # If this also fails, it is repeated before the next load and in the next save.
        with suppress(CheckpointError):
            recover(place)
        with suppress(OSError):
            Folder(place.parent, link=False).remove(temporary)
        if isinstance(error, OSError):
            raise _cannot_write(place, error) from error
        raise
    finally:
        _active.discard(temporary)


def at_once(
    _: Path, context: AbstractContextManager[Writer], fill: Callable[[Writer], None]
) -> None:
    """Write everything before `save` returns."""
    with context as writer:
        fill(writer)


WAY: ContextVar[Way] = ContextVar("WAY", default=at_once)
"""How `save` writes a directory, by the context `writing` and a function that fills its Writer.

The context may be left later, by another thread.
"""


def _check_named(directory: Path, step: int) -> None:
    named = STEP.fullmatch(directory.name)
    if named and int(named[1]) != step:
        msg = f"{directory} would hold the checkpoint of step {step}; choose another name"
        raise CheckpointError(msg)
    for path in (directory, directory.parent):
        if path.is_symlink():  # `place_of` has followed other links
            why = "so that saving would write elsewhere; remove it, or save where it leads"
            msg = f"{path} is a symbolic link, {why}"
            raise CheckpointError(msg)


def _settle(folder: Folder, directory: Path) -> None:
    try:
        folder.sync()
    except OSError as error:
        msg = f"{directory} is written but may not survive a power failure: {error.strerror}"
        raise CheckpointError(msg) from error
    # If this fails, the new checkpoint is still complete; the old files only take disk space.
    with suppress(OSError):
        discard(folder, old_of(directory).name)


def _cannot_write(directory: Path, error: OSError) -> CheckpointError:
    way_out = _WAY_OUT.get(error.errno or 0, f"check the disk or {_ELSEWHERE}")
    msg = f"cannot write checkpoint {directory}: {error.strerror or error}; {way_out}"
    with suppress(CheckpointError, OSError):  # a disk that cannot be read does not tell
        if not (directory.exists() or checkpoints(directory.parent)):
            return CheckpointError(msg)
    return CheckpointError(f"{msg}; the previous checkpoint is intact")
