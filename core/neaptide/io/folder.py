"""Opens, replaces and moves files of a folder. No link leads out of the folder.

Names are looked up in the open folder, not by path. So a folder that somebody sent, or swaps while
a process works in it, cannot make the process read or write a file elsewhere.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import weakref
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Iterator

_STRAY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
# Windows has only O_BINARY. Without O_NONBLOCK, opening a named pipe may wait forever.
_ALWAYS = sum(
    getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY")
)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_RELATIVE = {os.open, os.stat, os.rename, os.unlink, os.mkdir} <= os.supports_dir_fd


class Folder:
    """An open folder.

    Only regular files are opened, and only files without another hard link are opened for writing.
    Otherwise the methods raise an OSError that says what the file is. If the folder is deleted and
    made again, it is opened again.

    Args:
        path: the folder; it may be a link, unless it is in a folder of `HELD`.
        make: create the folder, and its parents, if it is missing, and flush their names.
        link: whether the folder may be a link; if not, only its parents may.
    """

    def __init__(self, path: Path, *, make: bool = False, link: bool = True) -> None:
        held, made = is_held(path), make and not path.exists()
        if held or made:
            parent = Folder(path.parent if held else resolved(path.parent), make=make)
            self._enter(parent, path.name, make=make)
            if made:
                parent.sync()
        else:
            self.path = resolved(path) if link else resolved(path.parent) / path.name
            self._parent: Folder | None = None
            self._attach(_opened(self.path, _ALWAYS))

    def __repr__(self) -> str:
        return called(self, os.fspath(self.path))

    def _attach(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self._closing = descriptor is not None and weakref.finalize(self, close_read, descriptor)

    def close(self) -> None:
        """Close the folder; idempotent."""
        if self._closing:
            self._closing()
        self._descriptor = None

    def _at(self, name: str) -> tuple[str | Path, int | None]:
        """Return the path and the descriptor that together lead to `name`."""
        if not name or name in (".", "..") or "/" in name or os.sep in name or "\0" in name:
            msg = f"{name!r} is not the name of a file in a folder"
            raise ValueError(msg)
        if not _RELATIVE:
            return self.path / name, None
        if os.fstat(self._alive()).st_nlink == 0:  # deleted
            self._reopen()
        return name, self._descriptor

    def _alive(self) -> int:
        if self._descriptor is None:
            msg = f"{self} is closed"
            raise ValueError(msg)
        return self._descriptor

    def renew(self) -> None:
        """If this folder was moved away, open the folder that is at its path now."""
        if _RELATIVE and not os.path.samestat(self.path.lstat(), os.fstat(self._alive())):
            self._reopen()

    def _reopen(self) -> None:
        if self._parent is None:
            again = _opened(self.path, _ALWAYS)
        else:
            path, within = self._parent._at(self.path.name)  # noqa: SLF001 - of the same class
            again = _opened(path, _ALWAYS, within)
        self.close()
        self._attach(again)

    def folder(self, name: str, *, make: bool = False) -> Folder:
        """Open a folder in this folder; with `make` create it if it is missing.

        Raises OSError if it is missing, a link or not a folder.
        """
        inner = Folder.__new__(Folder)
        inner._enter(self, name, make=make)  # noqa: SLF001 - of the same class
        return inner

    def _enter(self, parent: Folder, name: str, *, make: bool) -> None:
        path, descriptor = parent._at(name)
        self.path, self._parent = parent.path / name, parent
        if make:
            with suppress(FileExistsError):
                os.mkdir(path, dir_fd=descriptor)
        found = os.stat(path, dir_fd=descriptor, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode):
            raise _refused(errno.ENOTDIR, found, self.path)
        self._attach(_opened(path, _ALWAYS, descriptor))

    def sync(self) -> None:
        """Flush the names of the entries to the disk."""
        if _RELATIVE:
            os.fsync(self._alive())

    def has(self, name: str, file: int) -> bool:
        """Return whether an open file with this descriptor is the entry `name`."""
        found = self.stat(name)
        return found is not None and os.path.samestat(found, os.fstat(file))

    def names(self) -> list[str]:
        """Return the names of all entries, sorted."""
        with os.scandir(self._alive() if _RELATIVE else self.path) as entries:
            return sorted(entry.name for entry in entries)

    def stat(self, name: str) -> os.stat_result | None:
        """Return the status of an entry, of a link itself; None if there is no such entry."""
        path, descriptor = self._at(name)
        try:
            return os.stat(path, dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """Return a descriptor of a regular file. `flags` are those of `os.open`."""
        path, descriptor = self._at(name)
        truncate, flags = flags & os.O_TRUNC, flags & ~os.O_TRUNC
        try:
            opened = os.open(path, flags | _ALWAYS, 0o666, dir_fd=descriptor)
        except OSError as error:
            found = self.stat(name) if error.errno in (errno.ELOOP, errno.ENXIO) else None
            if found is None:
                raise
            raise _refused(error.errno, found, self.path / name) from error
        found = os.fstat(opened)
        written = flags & (os.O_WRONLY | os.O_RDWR)
        if not stat.S_ISREG(found.st_mode) or (written and found.st_nlink > 1):
            os.close(opened)
            raise _refused(errno.EPERM, found, self.path / name)
        if truncate:
            os.ftruncate(opened, 0)
        return opened

    def read(self, name: str, limit: int | None = None) -> bytes:
        """Return the content of a file; OSError if it has more than `limit` bytes."""
        with os.fdopen(self.open(name), "rb") as file:
            content = file.read() if limit is None else file.read(limit + 1)
        if limit is not None and len(content) > limit:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), os.fspath(self.path / name))
        return content

    @contextmanager
    def writing(self, name: str, mode: str = "wb", **how: Any) -> Iterator[IO[Any]]:
        """Yield a new file that replaces `name` at the end of the context.

        After a crash `name` has its old or its new content. After an exception the old file stays,
        and nothing is left beside it. `mode` and `how` are those of `open`.
        """
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        descriptor = self.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            with os.fdopen(descriptor, mode, **how) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            self.rename(temporary, name)
        except BaseException:
            with suppress(OSError):
                self.unlink(temporary)
            raise

    def replace(self, name: str, content: bytes) -> None:
        """Replace the file `name` atomically; see `writing`."""
        with self.writing(name) as file:
            file.write(content)

    def rename(self, name: str, new: str, into: Folder | None = None) -> None:
        """Give an entry a new name, here or in the folder `into`; replace what has that name."""
        path, here = self._at(name)
        target, there = (into or self)._at(new)  # noqa: SLF001 - of the same class
        os.replace(path, target, src_dir_fd=here, dst_dir_fd=there)

    def unlink(self, name: str) -> None:
        """Remove a file or a link, if it is there."""
        path, descriptor = self._at(name)
        with suppress(FileNotFoundError):
            os.unlink(path, dir_fd=descriptor)

    def remove(self, name: str) -> None:
        """Remove a file or a link, or as much as possible of a folder."""
        path, descriptor = self._at(name)
        found = self.stat(name)
        if found is not None and stat.S_ISDIR(found.st_mode):
            shutil.rmtree(path, ignore_errors=True, dir_fd=descriptor)
        else:
            self.unlink(name)

    def clear(self) -> None:
        """Remove the temporary files that killed processes left."""
        for name in filter(_STRAY.fullmatch, self.names()):
            with suppress(OSError):
                self.unlink(name)


HELD: weakref.WeakValueDictionary[Path, Folder] = weakref.WeakValueDictionary()
"""Folders by path. Until one is closed, this process follows no link at its path and below."""


def resolved(path: Path) -> Path:
    """Return `path.resolve()`, also while somebody else makes and removes links on the way."""
    for _ in range(9):
        with suppress(OSError):  # a link went between being seen and being read
            return path.resolve()
    return path.resolve()


def is_held(path: Path) -> bool:
    """Return whether `path` is a folder of `HELD`, or is below one."""
    found = map(HELD.get, ((path := path.absolute()), *path.parents))
    return any(one is not None and one._descriptor is not None for one in found)  # noqa: SLF001


def close_read(descriptor: int) -> None:
    """Close a descriptor through which nothing was written: an error means nothing."""
    with suppress(OSError):
        os.close(descriptor)


def _opened(path: str | Path, flags: int = 0, within: int | None = None) -> int | None:
    """Return the descriptor of an open folder; None if the system looks up names only by path."""
    try:
        return os.open(path, _FOLDER | flags, dir_fd=within) if _RELATIVE else None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        found = os.stat(path, dir_fd=within, follow_symlinks=False)
        raise _refused(errno.ENOTDIR, found, Path(path)) from error


def _refused(number: int | None, found: os.stat_result, path: Path) -> OSError:
    if stat.S_ISLNK(found.st_mode):
        what = "is a symbolic link"
    elif stat.S_ISREG(found.st_mode) and number != errno.ENOTDIR:
        what = "has another hard link"
    else:
        what = "is not a folder" if number == errno.ENOTDIR else "is not a regular file"
    return OSError(number or errno.EPERM, f"{path.name} {what}", os.fspath(path))


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file at `path` atomically. Links in the path of its folder are followed."""
    Folder(path.parent).replace(path.name, content)
