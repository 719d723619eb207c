"""A save that dies or fails at its n-th operation, for every n; prints what loads afterwards.

`crash_points.py ROOT FAULT START`: one JSON line an operation. Every save runs in a forked child
whose `os` counts. START is what is there already:
    first        nothing, not even the directory it goes to
    replace      a checkpoint
    interrupted  a checkpoint that an earlier save had just renamed aside
    leftover     a checkpoint, and the one before it that was to be deleted

FAULT is what happens at the operation:
    exit       the process ends
    torn       half of a write reaches the file, then the process ends
    power      the process ends, at the latest after the save; what was not fsynced is lost
    error      OSError, once
    errors     OSError, from then on
    interrupt  KeyboardInterrupt, once
    short      nothing, but every write takes 100 bytes at most
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from neaptide.checkpoint import recover, verify, writing
from neaptide.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = ("open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir")
OPERATIONS = (*CHANGES, "stat", "lstat", "fstat", "scandir", "listdir")
COUNTED = {"torn": ("write",), "short": (), "error": OPERATIONS, "errors": OPERATIONS}
"""Where a fault strikes: dying before a question is dying before the next change."""

DIED, INTERRUPTED, REFUSED, BROKEN = 9, 130, 3, 4


def save(directory: Path, content: str) -> None:
    with writing(directory, 7, {"content": content}) as writer:
        for name in ("weights.bin", "state.json"):
            with writer.file(name) as file:
                file.write(content.encode() * 50)
                file.write(content.encode() * 50)


def loaded(directory: Path) -> str:
    recover(directory)
    if not directory.exists():
        return "nothing"
    if problems := verify(directory):
        return f"damaged: {problems}"
    texts = {(directory / name).read_text() for name in ("weights.bin", "state.json")}
    (text,) = texts
    return text[: len(text) // 100]


class Disk:
    """What has not reached the disk: files written, names made and renamed since the last fsync."""

    def __init__(self) -> None:
        self._files: dict[int, int] = {}
        self._names: dict[int, list[tuple[int, str, str]]] = {}

    def note(
        self, operation: str, arguments: tuple[Any, ...], options: dict[str, Any], result: Any
    ) -> None:
        if operation == "open" and arguments[1] & os.O_CREAT:
            self._files[_inode(result)] = os.dup(result)
            self._changed("made", _path(arguments[0], options.get("dir_fd")))
        elif operation == "mkdir":
            self._changed("made", _path(arguments[0], options.get("dir_fd")))
        elif operation == "rename":
            path = _path(arguments[1], options.get("dst_dir_fd"))
            self._changed(Path(arguments[0]).name, path)
        elif operation == "fsync":
            self._files.pop(_inode(arguments[0]), None)
            self._names.pop(_inode(arguments[0]), None)

    def lose(self) -> None:
        """Truncate those files to half, take back those renames, remove those new names."""
        for name in OPERATIONS:
            setattr(os, name, REAL[name])
        os.replace = REAL["rename"]
        for descriptor in self._files.values():
            os.ftruncate(descriptor, os.fstat(descriptor).st_size // 2)
        for changes in self._names.values():
            for descriptor, before, now in reversed(changes):
                path = _path(now, descriptor)
                if not path.exists():
                    continue  # went with its directory, or was deleted, which comes after a rename
                if before != "made":
                    path.rename(path.with_name(before))
                elif path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _changed(self, before: str, path: Path) -> None:
        parent = REAL["open"](path.parent, os.O_RDONLY)
        self._names.setdefault(_inode(parent), []).append((parent, before, path.name))


def _path(name: str | Path, folder: int | None) -> Path:
    """Return the path of what has a name in an open folder."""
    return Path(name) if folder is None else Path(f"/proc/self/fd/{folder}").readlink() / name


def _inode(descriptor: int) -> int:
    return int(REAL["fstat"](descriptor).st_ino)


class Fault:
    """Counts the operations of this process and strikes at the n-th."""

    def __init__(self, kind: str, at: int, report: int) -> None:
        self._kind, self._at, self._report = kind, at, report
        self._count = 0
        self._counted = COUNTED.get(kind, CHANGES)
        self.disk = Disk()
        for name in OPERATIONS:
            setattr(os, name, self._wrap(name))
        os.replace = os.rename  # on this system it is the same

    def _wrap(self, name: str) -> Callable[..., Any]:
        def operation(*arguments: Any, **options: Any) -> Any:
            self._count += name in self._counted
            if self._count == self._at and name in self._counted:
                REAL["write"](self._report, name.encode())
                self._strike(arguments)
            elif self._count > self._at and self._kind == "errors":
                self._strike(arguments)
            if name == "write" and self._kind == "short":
                arguments = (arguments[0], arguments[1][:100])
            result = REAL[name](*arguments, **options)
            self.disk.note(name, arguments, options, result)
            return result

        return operation

    def _strike(self, arguments: tuple[Any, ...]) -> None:
        match self._kind:
            case "torn":
                descriptor, data = arguments
                REAL["write"](descriptor, data[: len(data) // 2])
            case "power":
                self.disk.lose()
            case "interrupt":
                raise KeyboardInterrupt
            case "error" | "errors":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        os._exit(DIED)


REAL = {name: getattr(os, name) for name in OPERATIONS}


def prepare(directory: Path, start: str) -> None:
    aside = directory.with_name(f".old-{directory.name}")
    if start == "leftover":
        save(aside, "older")
    if start != "first":
        save(directory, "old")
    if start == "interrupted":
        directory.rename(aside)


def child(directory: Path, kind: str, at: int, report: int) -> NoReturn:
    code = BROKEN
    try:
        fault = Fault(kind, at, report)
        save(directory, "new")
        if kind == "power":
            fault.disk.lose()
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except CheckpointError as error:
        REAL["write"](report, f"\n{error}".encode())
        code = REFUSED
    except BaseException:  # noqa: BLE001 - the parent asserts on the exit status
        traceback.print_exc()
    os._exit(code)


def crash(directory: Path, kind: str, at: int) -> tuple[int, str, str]:
    """Return the exit status of a save with the fault, the operation it met, and its error."""
    reader, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        child(directory, kind, at, report)
    os.close(report)
    with open(reader, "rb") as pipe:  # noqa: PTH123 - a descriptor has no path
        operation, _, message = pipe.read().decode().partition("\n")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status), operation, message


def main(root: Path, kind: str, start: str) -> None:
    for at in itertools.count(1):
        directory = root / str(at) / "step-00000007"
        prepare(directory, start)
        status, operation, message = crash(directory, kind, at)
        in_place = directory.exists()
        after = loaded(directory)
        save(directory, "next")
        record = {
            "operation": operation,
            "status": status,
            "message": message,
            "in place": in_place,
            "loaded": after,
            "next": loaded(directory),
            "entries": sorted(path.name for path in directory.parent.iterdir()),
        }
        sys.stdout.write(json.dumps(record) + "\n")
        if not operation:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
