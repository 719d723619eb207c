"""The anonymous memory of this process."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event, Thread
from typing import Self

from neaptide_toolkit.offload.pages import Pages, mapped


class AnonymousPeak:
    """Samples the anonymous memory of the process in a thread of its own."""

    def __init__(self) -> None:
        self.before = self.peak = anonymous()
        self._ended = Event()
        self._thread = Thread(target=self._sample)

    def _sample(self) -> None:
        while not self._ended.wait(0.01):
            self.peak = max(self.peak, anonymous())

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._ended.set()
        self._thread.join()
        self.peak = max(self.peak, anonymous())


def anonymous() -> int:
    """Return the bytes of anonymous memory of this process."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    (kib,) = re.findall(r"RssAnon:\s+(\d+) kB", status)
    return int(kib) * 1024


def have_memory(size: int) -> None:
    """Use memory once, as huge pages.

    The host of a virtual machine takes free huge pages away, and gives one back in milliseconds
    when it is used. That would be most of what is timed.
    """
    _, flat = mapped(size, Pages)
    flat.fill_(1)
