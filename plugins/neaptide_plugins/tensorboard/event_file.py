"""Writes TensorBoard's event file in the caller's thread, so that errors reach the caller.

TensorBoard's own writers use another thread, which hangs when the disk fails.
"""

from __future__ import annotations

import errno
import io
import os
import socket
import time
from typing import TYPE_CHECKING

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.record_writer import RecordWriter

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.io.folder import Folder


class EventFile:
    """A new event file in `folder`. Every method may raise OSError.

    Args:
        folder: TensorBoard reads all files of the folder as one run.
        flush_seconds: an event flushes the file if at least this number of seconds has passed
            since the last flush.
    """

    def __init__(self, folder: Folder, flush_seconds: float) -> None:
        # Names sort in the order of creation.
        self._folder = folder
        self._name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        descriptor = folder.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        self._file = os.fdopen(descriptor, "wb", buffering=0)
        self._flush_seconds = flush_seconds
        self._flushed = time.monotonic()
        self._pending = io.BytesIO()
        self._records = RecordWriter(self._pending)
        self._add(Event(file_version="brain.Event:2"))

    def begin(self, step: int) -> None:
        """Make TensorBoard discard the points of earlier files after `step`."""
        self._add(Event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))

    def numbers(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point at `step` to the curve of each tag."""
        points = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(Event(step=step, summary=Summary(value=points)))

    def phase(self, step: int, name: str) -> None:
        """Add the name of a phase at `step`, as text."""
        value = Summary.Value(
            tag="phase",
            metadata=create_summary_metadata(display_name="", description=""),
            tensor=TensorProto(dtype=DT_STRING, string_val=[name.encode()]),
        )
        self._add(Event(step=step, summary=Summary(value=[value])))

    def flush(self) -> None:
        """Write all pending events. After an error the file still ends with a complete event."""
        data = self._pending.getvalue()
        self._pending.seek(0)
        self._pending.truncate()
        self._flushed = time.monotonic()
        found = self._folder.stat(self._name)
        if found is None or not os.path.samestat(found, os.fstat(self._file.fileno())):
            raise FileNotFoundError(
                errno.ENOENT, "the event file was removed or replaced", self._path
            )
        before = self._file.tell()
        if self._file.write(data) != len(data):
            self._file.seek(before)
            self._file.truncate()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    @property
    def _path(self) -> str:
        return os.fspath(self._folder.path / self._name)

    def close(self, error: BaseException | None = None) -> None:
        """Write the pending events, and close the file."""
        del error
        try:
            self.flush()
        finally:
            self._file.close()

    def _add(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())
        if time.monotonic() - self._flushed >= self._flush_seconds:
            self.flush()
