"""Files of a checkpoint to which all processes write.

The first process writes the header, and what it has whole. For each tensor of which the processes
have rows, it skips its place: rows of dim 0 follow each other in the bytes of a tensor, so each
process knows where its own belong.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from functools import partial
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from neaptide.checkpoint import FileEntry
    from neaptide.checkpoint.files import Writer
    from neaptide.io.folder import Folder

_LENGTH = 8
"""Bytes of the number with which a safetensors file begins: the length of its header."""


class SharedFile:
    """A new safetensors file, for what `write_tensors` writes; the tensors `apart` are left out.

    Attributes:
        folder: where it is.
        name: of the file.
        bytes: how many it has, those that were left out included.
        places: the first byte of each tensor that was left out.
        found: what the manifest says of the file; set when all have written.
    """

    def __init__(self, folder: Folder, name: str, *, apart: Collection[str]) -> None:
        self.folder, self.name, self._apart = folder, name, apart
        self._file = os.fdopen(folder.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")
        self.bytes = 0
        self.places: dict[str, int] = {}
        self.found: FileEntry | None = None
        self._head: bytearray | None = bytearray()
        self._starts: list[int] = []
        self._stops: list[int] = []

    def write(self, data: bytes | memoryview) -> int:
        """Take all of `data`, a part of the header or of one tensor; return how many bytes."""
        view = memoryview(data).cast("B")
        place = bisect_right(self._starts, self.bytes) - 1
        if place >= 0 and self.bytes < self._stops[place]:
            self._file.seek(len(view), os.SEEK_CUR)
        else:
            self._file.write(view)
        self.bytes += len(view)
        if self._head is not None:
            self._head += view
            self._read_head(self._head)
        return len(view)

    def _read_head(self, head: bytearray) -> None:
        length = int.from_bytes(head[:_LENGTH], "little")
        if len(head) < _LENGTH or len(head) < _LENGTH + length:
            return
        entries = json.loads(bytes(head[_LENGTH:]))
        data = {
            name: entry["data_offsets"] for name, entry in entries.items() if name in self._apart
        }
        for name, (start, stop) in sorted(data.items(), key=lambda item: tuple(item[1])):
            if start < stop:
                self.places[name] = len(head) + start
                self._starts.append(len(head) + start)
                self._stops.append(len(head) + stop)
        self._head = None

    def close(self, *, sync: bool = True) -> None:
        """Close the file. If `sync` is true, first flush the data to the disk. Idempotent."""
        if self._file.closed:
            return
        with self._file:
            if sync:
                self._file.truncate(self.bytes)
                self._file.flush()
                os.fsync(self._file.fileno())

    def entry(self) -> FileEntry:
        """Return digest and size of the data of all processes."""
        assert self.found is not None, "all have written"
        return self.found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


class SharedFiles:
    """Takes the place of a `Writer` for what fills a checkpoint.

    Args:
        writer: of the checkpoint.
        apart: of each shared file the tensors that are left out.

    Attributes:
        made: the shared files.
    """

    def __init__(self, writer: Writer, apart: Mapping[str, Collection[str]]) -> None:
        self._writer, self._apart = writer, apart
        self.made: list[SharedFile] = []

    def file(self, name: str) -> Any:
        """Create a file; see `Writer.file`."""
        if not self._apart.get(name):
            return self._writer.file(name)
        made: Any = self._writer.file(name, partial(SharedFile, apart=self._apart[name]))
        self.made.append(made)
        return made

    @property
    def bytes(self) -> int:
        """The number of bytes of all files so far."""
        return self._writer.bytes
