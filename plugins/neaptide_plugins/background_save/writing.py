"""Writes a checkpoint in a thread, from copies in buffers of fixed size."""

from __future__ import annotations

from functools import partial
from queue import LifoQueue, SimpleQueue
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Self

import torch

from neaptide.checkpoint.safetensors_stream import PIECE
from neaptide_toolkit.offload.pages import Pages, mapped

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from neaptide.checkpoint.files import HashedFile, Writer

    _Work = SimpleQueue[Callable[[], object] | None]


class BackgroundWriter:
    """Writes one checkpoint at a time.

    `write` copies and returns; the files are complete after `finish`. Both are for one thread.

    Args:
        nbytes: bytes of buffers, at least two of `PIECE` bytes each. They are reserved at once; a
            buffer takes RAM when it is used first.
    """

    def __init__(self, nbytes: int) -> None:
        self.bytes = max(2, nbytes // PIECE) * PIECE
        _, flat = mapped(self.bytes, Pages)
        self._free: LifoQueue[torch.Tensor] = LifoQueue()  # what was used last has its RAM
        for buffer in torch.split(flat, PIECE):
            self._free.put(buffer)
        self._thread: Thread | None = None
        self._go = Event()
        """Set when all is copied, or no buffer is free: beside the thread, copying takes longer."""
        self._error: BaseException | None = None

    def write(self, context: AbstractContextManager[Writer], fill: Callable[[Any], None]) -> None:
        """Enter `context`, copy what `fill` writes, and leave the context in a thread.

        The previous checkpoint has to be finished. An error of `fill` is raised here, after the
        context has removed its files.
        """
        assert self._thread is None, "the previous checkpoint is not finished"
        writer = context.__enter__()
        work: _Work = SimpleQueue()
        self._go.clear()
        self._thread = Thread(
            target=self._run, args=(context, work), name="neaptide-save", daemon=True
        )
        self._thread.start()
        try:
            fill(_CopiedFiles(self, writer, work))
        except BaseException as error:  # noqa: BLE001 - raised by `finish`
            self._error = error
            self._go.set()
            work.put(None)
            self.finish()  # raises it, or what the context makes of it
        else:
            self._go.set()
            work.put(None)

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

    def take(self) -> torch.Tensor:
        """Return a free buffer of `PIECE` bytes; wait for one."""
        if self._free.empty():
            self._go.set()
        return self._free.get()

    def give_back(self, buffer: torch.Tensor) -> None:
        """Let a buffer be used again."""
        self._free.put(buffer)

    def write_copy(self, file: HashedFile, buffer: torch.Tensor, count: int) -> None:
        """Write the first `count` bytes of a buffer, unless the checkpoint has failed; free it."""
        try:
            if self._error is None:
                file.write(buffer.numpy().data[:count])
        finally:
            self._free.put(buffer)

    def _run(self, context: AbstractContextManager[Writer], work: _Work) -> None:
        self._go.wait()
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
    """A file of the checkpoint: what is written to it is copied, one buffer after the other."""

    def __init__(self, owner: BackgroundWriter, file: HashedFile, work: _Work) -> None:
        self._owner, self._file, self._work = owner, file, work
        self._buffer: torch.Tensor | None = None
        self._used = 0
        self.bytes = 0

    def write(self, data: bytes | memoryview) -> int:
        rest = memoryview(data).cast("B")
        count = len(rest)
        while rest:
            if self._buffer is None:
                self._buffer, self._used = self._owner.take(), 0
            part = rest[: PIECE - self._used]
            self._buffer.numpy().data[self._used : self._used + len(part)] = part
            self._used, rest = self._used + len(part), rest[len(part) :]
            if self._used == PIECE:
                self._send()
        self.bytes += count
        return count

    def _send(self) -> None:
        if self._buffer is not None:
            self._work.put(partial(self._owner.write_copy, self._file, self._buffer, self._used))
            self._buffer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._send()
            self._work.put(self._file.close)
        elif self._buffer is not None:
            self._owner.give_back(self._buffer)


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
