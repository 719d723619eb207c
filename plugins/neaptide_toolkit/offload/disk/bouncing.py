"""Buffers between the disk and memory that it cannot reach: that of a GPU, or unaligned memory."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import torch

from neaptide.devices import api_of, has_streams
from neaptide_toolkit.offload.host_memory import Slab

if TYPE_CHECKING:
    from collections.abc import Iterator


class BounceBuffer:
    """A page-aligned buffer in RAM, with a stream of its own if the device has streams."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.flat = Slab.on_host_of(device, size).flat
        self._device = device
        self._stream: Any = api_of(device).Stream(device) if has_streams(device) else None

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy `source` to `target`, one of which is in this buffer, and wait for the copy."""
        with self._current(), torch.no_grad():
            target.copy_(source, non_blocking=True)
        if self._stream is not None:
            self._stream.synchronize()

    def _current(self) -> Any:
        return nullcontext() if self._stream is None else api_of(self._device).stream(self._stream)


class BounceBuffers:
    """Buffers that threads take and give back."""

    def __init__(self, count: int, size: int, device: torch.device) -> None:
        self._free: SimpleQueue[BounceBuffer] = SimpleQueue()
        for _ in range(count):
            self._free.put(BounceBuffer(size, device))

    @contextmanager
    def one(self) -> Iterator[BounceBuffer]:
        """Take a buffer that nobody uses; wait for one if there is none."""
        taken = self._free.get()
        try:
            yield taken
        finally:
            self._free.put(taken)
