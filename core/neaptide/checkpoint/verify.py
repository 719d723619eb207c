"""Reads and checks every byte of a checkpoint in limited memory, without following symlinks."""

from __future__ import annotations

import hashlib
import mmap
import os
import re
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext
from functools import partial
from io import BufferedReader, FileIO
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.errors import CheckpointError
from neaptide.io.folder import Folder, close_read

from . import manifest
from .manifest import MANIFEST, Manifest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator
    from concurrent.futures import Future
    from pathlib import Path

BASE, BASE_FILE = "frozen", "weights.safetensors"
"""The fact with the sha256 of a checkpoint's frozen weights, and the name of their file."""
OF_A_RUN = re.compile(rf"{manifest.STEP.pattern}|frozen-[0-9a-f]{{16}}")
MUCH = 2**20
"""Bytes from which on a thread is worth its start."""
_THREADS, _PIECE = 8, 2**20
"""How many files are read at once, and the bytes of a piece: four of each are in memory."""
_SETTLED_NS = 2 * 10**9
"""Age from which on a further change gives a file another time: clocks of files tick slowly."""


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
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


_digests: dict[Identity, str] = {}
"""The sha256 of files that this process has read: `--resume auto` finds one, then loads it."""


def rooms(
    size: int, *workers: Callable[[memoryview], object]
) -> Generator[memoryview, int | None, None]:
    """Yield the first of four buffers of `size` bytes to fill; `send(filled)` returns the next.

    Each of `workers` gets what is filled, in order, in a thread of its own. What one raises, `send`
    or the last `next` raises, which waits for all work.
    """
    # private pages, as O_DIRECT asks for; they take RAM at the first write
    pages = [mmap.mmap(-1, max(1, size), access=mmap.ACCESS_COPY) for _ in range(4)]
    ring: deque[tuple[memoryview, list[Future[object]]]] = deque((memoryview(p), []) for p in pages)
    with ExitStack() as stack:
        pools = [(stack.enter_context(ThreadPoolExecutor(1)), work) for work in workers]
        filled: int | None = 0
        while ring:
            room, works = ring.popleft()
            for one in works:
                one.result()
            if filled is not None and (filled := (yield room)) is not None:
                ring.append((room, [pool.submit(work, room[:filled]) for pool, work in pools]))


@contextmanager
def opened(path: Path, expected: Identity | None = None) -> Iterator[tuple[int, Identity]]:
    """Open a regular file for reading. Yield the file's descriptor and identity."""
    try:
        with closing(folder_of(path.parent)) as folder:
            descriptor = folder.open(path.name)
    except OSError as error:
        msg = f"cannot read {path}: {(error.strerror or '').removeprefix(f'{path.name} ')}"
        raise CheckpointError(msg) from error
    try:
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
        close_read(descriptor)


def folder_of(directory: Path) -> Folder:
    """Open a checkpoint. A link is followed, but not in place of what a run makes: OSError."""
    return Folder(directory, link=not OF_A_RUN.fullmatch(directory.name))


def read_bytes(path: Path, limit: int, expected: Identity | None = None) -> bytes:
    """Return the content of a file; raise CheckpointError if it is longer than `limit` bytes."""
    with opened(path, expected) as (descriptor, identity):
        if identity.bytes > limit:
            msg = f"{path} has {identity.bytes} bytes, at most {limit}"
            raise CheckpointError(msg)
        file = BufferedReader(FileIO(descriptor, closefd=False))
        return file.read(identity.bytes)  # another process may append to it without end


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of the checkpoint at `directory`; the data files are not checked.

    Raises CheckpointError if the manifest is missing or damaged, or if the directory has the name
    of another step.
    """
    path = directory / MANIFEST
    found = manifest.parse(read_bytes(path, manifest.MAX_BYTES), str(path))
    named = manifest.STEP.fullmatch(directory.name)
    if named and int(named[1]) != found.step:
        msg = f"{directory} is of step {found.step}; give it the name of that step, or remove it"
        raise CheckpointError(msg)
    return found


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
        with closing(folder_of(directory)) as folder:
            present = {*folder.names()}
    except CheckpointError as error:
        return Examined(None, {}, [str(error)])
    except OSError as error:
        return Examined(None, {}, [f"cannot read {directory}: {error.strerror}"])
    missing = found.files.keys() - present
    extra = present - found.files.keys() - {MANIFEST}
    problems = [f"{directory}: {name!r} is missing" for name in sorted(missing)]
    problems += [f"{directory}: {name!r} is not in the manifest" for name in sorted(extra)]
    names = sorted(found.files.keys() & present)
    large = sum(found.files[name].bytes for name in names) >= MUCH
    results = spread(partial(_examined, directory, found), names, large=large)
    by_name = dict(zip(names, results, strict=True))
    identities = {name: one for name, one in by_name.items() if isinstance(one, Identity)}
    return Examined(found, identities, problems + [one for one in results if type(one) is str])


def spread(work: Callable[[Any], Any], items: Iterable[Any], *, large: bool) -> list[Any]:
    """Return what `work` returns for each item. If `large`, several threads work."""
    with ThreadPoolExecutor(_THREADS) if large else nullcontext() as pool:
        return [*(map if pool is None else pool.map)(work, items)]


def _examined(directory: Path, found: Manifest, name: str) -> Identity | str:
    """Return the identity of a sound file, or what is wrong with it."""
    path, entry = directory / name, found.files[name]
    try:
        with opened(path) as (descriptor, identity):
            if identity.bytes != entry.bytes:
                return f"{path}: {identity.bytes} bytes, should be {entry.bytes}"
            if _digests.get(identity) != entry.sha256:
                if _sha256(descriptor, entry.bytes) != entry.sha256:
                    return f"{path}: damaged, its sha256 does not match"
                if time.time_ns() - identity.changed_ns > _SETTLED_NS:
                    _digests[identity] = entry.sha256
            return identity
    except CheckpointError as error:
        return str(error)


def verify(directory: Path) -> list[str]:
    """Read every byte of a checkpoint, and of the frozen weights that it refers to.

    Return the problems, one line each; empty if the checkpoint is valid.
    """
    found = examine(directory)
    if found.manifest is None or BASE not in found.manifest.facts:
        return found.problems
    sha256 = str(found.manifest.facts[BASE])
    base = examine(base_of(directory.parent, sha256))
    if base.manifest is not None and base.manifest.files[BASE_FILE].sha256 != sha256:
        base.problems.append("they have another sha256")
    return [*found.problems, *(f"frozen weights: {problem}" for problem in base.problems)]


def base_of(root: Path, sha256: str) -> Path:
    """Return the directory of the frozen weights whose file has this digest."""
    return root / f"frozen-{sha256[:16]}"


def is_base(path: Path) -> bool:
    """Return whether the checkpoint at `path` has frozen weights, and the name of `base_of`."""
    named = re.fullmatch(r"frozen-[0-9a-f]{16}", path.name) is not None
    return named and read_manifest(path).files.keys() == {BASE_FILE}


def complete(directory: Path) -> bool:
    """Return whether the manifest is valid and all files have the right size; read no data file."""
    try:
        files = read_manifest(directory).files
        with closing(folder_of(directory)) as folder:
            return all(
                (found := folder.stat(name)) is not None and found.st_size == entry.bytes
                for name, entry in files.items()
            )
    except (CheckpointError, OSError):
        return False


def _sha256(descriptor: int, size: int) -> str:
    """Return the digest of a file, which a thread computes while the next piece is read."""
    digest, file = hashlib.sha256(), FileIO(descriptor, closefd=False)
    with closing(rooms(min(size, _PIECE), digest.update)) as ring:
        room = next(ring)
        while count := file.readinto(room[:size]):
            size -= count
            room = ring.send(count)
        next(ring, None)
    return digest.hexdigest()
