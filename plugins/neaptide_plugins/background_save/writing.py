"""Writes a checkpoint in a thread, from copies in buffers of fixed size."""

from __future__ import annotations

from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Self

from neaptide.checkpoint.safetensors_stream import PIECE

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from neaptide.checkpoint.files import HashedFile, Writer

    _Work = SimpleQueue[Callable[[], object] | None]


class BackgroundWriter:
    """Writes one checkpoint at a time.

    `write` copies and returns; the files are complete after `finish`. Both are for one thread.

    Args:
        nbytes: bytes of buffers, at least two of `PIECE` bytes each. They are allocated when they
            are needed, and stay.
    """

    def __init__(self, nbytes: int) -> None:
        self._most = self._left = max(2, nbytes // PIECE)
        self._free: SimpleQueue[bytearray] = SimpleQueue()
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    def write(self, context: AbstractContextManager[Writer], fill: Callable[[Any], None]) -> None:
        """Enter `context`, copy what `fill` writes, and leave the context in a thread.

        The previous checkpoint has to be finished. An error of `fill` is raised here, after the
        context has removed its files.
        """
        assert self._thread is None, "the previous checkpoint is not finished"
        writer = context.__enter__()
        work: _Work = SimpleQueue()
        self._thread = Thread(
            target=self._run, args=(context, work), name="neaptide-save", daemon=True
        )
        self._thread.start()
        try:
            fill(_CopiedFiles(self, writer, work))
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
            work.put(None)
            self.finish()  # raises it, or what the context makes of it
        else:
            work.put(None)

    def bytes_for(self, nbytes: int) -> int:
        """Return the bytes of buffers that a checkpoint of `nbytes` needs at most."""
        return min(self._most, max(2, -(-nbytes // PIECE))) * PIECE

    def finish(self) -> bool:
        """Wait until the checkpoint is complete; return whether there was one.

        Raises the error if it could not be written.
        """
        if self._thread is None:
            return False
        self._thread.join()
        error, self._thread, self._error = self._error, None, None
        if error is not None:
            raise error
        return True

    def copy(self, data: memoryview) -> memoryview:
        """Copy at most `PIECE` bytes to a free buffer, and return them; wait for a buffer."""
        if self._free.empty() and self._left:
            self._left -= 1
            self._free.put(bytearray(PIECE))
        copied = memoryview(self._free.get())[: len(data)]
        copied[:] = data
        return copied

    def write_copy(self, file: HashedFile, copied: memoryview) -> None:
        """Write what `copy` returned, unless the checkpoint has failed; its buffer is free then."""
        try:
            if self._error is None:
                file.write(copied)
        finally:
            self._free.put(copied.obj)  # type: ignore[arg-type]  # one that `copy` took

    def _run(self, context: AbstractContextManager[Writer], work: _Work) -> None:
        for task in iter(work.get, None):
            try:
                task()
            except BaseException as error:  # noqa: BLE001 - raised by `finish`
                self._error = self._error or error
        failed = self._error
        try:
            context.__exit__(type(failed) if failed else None, failed, None)
        except BaseException as raised:  # noqa: BLE001 - as above
            self._error = raised


class _CopiedFile:
    """A file of the checkpoint: what is written to it is copied."""

    def __init__(self, owner: BackgroundWriter, file: HashedFile, work: _Work) -> None:
        self._owner, self._file, self._work = owner, file, work
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        self.bytes += count
        while rest:
            copied = self._owner.copy(rest[:PIECE])
            self._work.put(partial(self._owner.write_copy, self._file, copied))
            rest = rest[PIECE:]
        return count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._work.put(self._file.close)


class _CopiedFiles:
    """Takes the place of a `Writer` for what fills a checkpoint."""

    def __init__(self, owner: BackgroundWriter, writer: Writer, work: _Work) -> None:
        self._owner, self._writer, self._work = owner, writer, work
        self._files: list[_CopiedFile] = []

    def file(self, name: str) -> _CopiedFile:
        """Create a file; see `Writer.file`."""
        self._files.append(_CopiedFile(self._owner, self._writer.file(name), self._work))
        return self._files[-1]

    @property
    def bytes(self) -> int:
        """The number of bytes copied so far."""
        return sum(file.bytes for file in self._files)
