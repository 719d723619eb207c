"""Reads and checks every byte of a checkpoint in limited memory, without following symlinks."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs

from neaptide.errors import CheckpointError

from . import manifest
from .manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PIECE = 2**20
# Without O_NONBLOCK, opening a named pipe may wait forever for a writer.
# Windows has only O_BINARY; other systems have the other flags.
_NAMES = ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in _NAMES)


@attrs.frozen
class Identity:
    """Facts of an open file. If the file is replaced or modified, at least one fact changes."""

    device: int
    inode: int
    bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> Identity:
        """Return the identity of an open file."""
        status = os.fstat(descriptor)
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )


@contextmanager
def opened(path: Path, expected: Identity | None = None) -> Iterator[tuple[int, Identity]]:
    """Open a regular file for reading. Yield the file's descriptor and identity."""
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError as error:
        why = "is a symbolic link" if error.errno == errno.ELOOP else error.strerror
        msg = f"cannot read {path}: {why}"
        raise CheckpointError(msg) from error
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            msg = f"cannot read {path}: not a regular file"
            raise CheckpointError(msg)
        identity = Identity.of(descriptor)
        if expected is not None and identity != expected:
            msg = f"{path} changed after it was verified; load the checkpoint again"
            raise CheckpointError(msg)
        yield descriptor, identity
        if Identity.of(descriptor) != identity:
            msg = f"{path} changed while it was read; load the checkpoint again"
            raise CheckpointError(msg)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror}"
        raise CheckpointError(msg) from error
    finally:
        os.close(descriptor)


def read_bytes(path: Path, limit: int, expected: Identity | None = None) -> bytes:
    """Return the content of a file; raise CheckpointError if it is longer than `limit` bytes."""
    with opened(path, expected) as (descriptor, identity):
        if identity.bytes > limit:
            msg = f"{path} has {identity.bytes} bytes, at most {limit}"
            raise CheckpointError(msg)
        return b"".join(_pieces(descriptor, identity.bytes))


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of the checkpoint at `directory`; the data files are not checked.

    Raises CheckpointError if the manifest is missing or damaged.
    """
    path = directory / MANIFEST
    return manifest.parse(read_bytes(path, manifest.MAX_BYTES), str(path))


@attrs.frozen
class Examined:
    """The result of `examine`. The checkpoint is valid if `problems` is empty."""

    manifest: Manifest | None
    identities: dict[str, Identity]
    """The identities of the files whose digest was right, by file name."""
    problems: list[str]


def examine(directory: Path) -> Examined:
    """Read every byte of a checkpoint; compare sizes and digests with the manifest."""
    try:
        found = read_manifest(directory)
        present = {path.name for path in directory.iterdir()}
    except CheckpointError as error:
        return Examined(None, {}, [str(error)])
    except OSError as error:
        return Examined(None, {}, [f"cannot read {directory}: {error.strerror}"])
    missing = found.files.keys() - present
    extra = present - found.files.keys() - {MANIFEST}
    problems = [f"{directory}: {name!r} is missing" for name in sorted(missing)]
    problems += [f"{directory}: {name!r} is not in the manifest" for name in sorted(extra)]
    identities = {}
    for name in sorted(found.files.keys() & present):
        path, entry = directory / name, found.files[name]
        try:
            with opened(path) as (descriptor, identity):
                if identity.bytes != entry.bytes:
                    problems.append(f"{path}: {identity.bytes} bytes, should be {entry.bytes}")
                elif _sha256(descriptor, entry.bytes) != entry.sha256:
                    problems.append(f"{path}: damaged, its sha256 does not match")
                else:
                    identities[name] = identity
        except CheckpointError as error:
            problems.append(str(error))
    return Examined(found, identities, problems)


def verify(directory: Path) -> list[str]:
    """Read every byte of a checkpoint; return its problems, one line each; empty if valid."""
    return examine(directory).problems


def complete(directory: Path) -> bool:
    """Return whether the manifest is valid and all files have the right size; read no data file."""
    try:
        files = read_manifest(directory).files
        return all(
            (directory / name).lstat().st_size == entry.bytes for name, entry in files.items()
        )
    except (CheckpointError, OSError):
        return False


def _sha256(descriptor: int, size: int) -> str:
    digest = hashlib.sha256()
    for piece in _pieces(descriptor, size):
        digest.update(piece)
    return digest.hexdigest()


def _pieces(descriptor: int, size: int) -> Iterator[bytes]:
    # The read stops at `size`, because another process may append to the file without end.
    while size > 0 and (piece := os.read(descriptor, min(size, _PIECE))):
        size -= len(piece)
        yield piece
