"""Reads and writes of a file, in pieces on several threads.

A disk is fast only if several large requests are under way at once.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from errno import EINVAL
from threading import Lock
from typing import TYPE_CHECKING

from neaptide.io.locking import direct
from neaptide.text import called

from .bouncing import BounceBuffers

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Request = Callable[[int, list[memoryview], int], int]

PIECE = 16 << 20
"""Bytes of one request."""
THREADS = 4
_PAGE = mmap.PAGESIZE


class Transfers:
    """Threads that read and write pieces of files.

    Memory that the disk can reach is page-aligned and in RAM. Other memory is copied through
    `threads` buffers of a piece each, and so is what fills no page: the disk is read and written in
    whole pages.

    Args:
        device: the device whose memory is read and written, or the CPU.
        threads: number of requests under way at once.
        piece: bytes of a request, a multiple of the page size.
    """

    def __init__(self, device: torch.device, *, threads: int = THREADS, piece: int = PIECE) -> None:
        if piece % _PAGE or piece <= 0:
            msg = f"a piece is a multiple of {_PAGE} bytes (got {piece})"
            raise ValueError(msg)
        self.device, self.threads, self.piece = device, threads, piece
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="neaptide-disk")
        self._made: BounceBuffers | None = None
        self._lock = Lock()
        self._written: Counter[int] = Counter()

    def __repr__(self) -> str:
        return called(self, f"{self.threads} threads", f"{self.piece} bytes")

    def read(self, number: int, offset: int, target: torch.Tensor) -> None:
        """Fill `target`, uint8 `[n]`, from a file, from `offset`, the start of a page.

        Raises OSError if the system refuses.
        """
        self._move(number, offset, target, writes=False)

    def write(self, number: int, offset: int, source: torch.Tensor) -> None:
        """Write `source`, uint8 `[n]`, to a file, from `offset`, the start of a page.

        The rest of its last page is undefined. Raises OSError if the system refuses.
        """
        self._move(number, offset, source, writes=True)
        with self._lock:
            self._written[number] += source.nbytes

    def _move(self, number: int, offset: int, flat: torch.Tensor, *, writes: bool) -> None:
        request: Request = os.pwritev if writes else os.preadv
        reached = flat.nbytes // _PAGE * _PAGE if _reachable(flat) else 0
        buffers = None if reached == flat.nbytes else self._bouncing()

        def move(part: torch.Tensor, at: int) -> None:
            if buffers is None or at < reached:
                _whole(request, number, part, offset + at)
                return
            with buffers.one() as buffer:
                pages = buffer.flat[: -(-part.nbytes // _PAGE) * _PAGE]
                held = pages[: part.nbytes]
                if writes:
                    buffer.copy(held, part)
                _whole(request, number, pages, offset + at)
                if not writes:
                    buffer.copy(part, held)

        self._all([*_pieces(flat[:reached], self.piece), *_pieces(flat, self.piece, reached)], move)

    def written_in(self, number: int) -> int:
        """Return the bytes written to a file so far."""
        return self._written[number]

    def _all(
        self, pieces: list[tuple[torch.Tensor, int]], work: Callable[[torch.Tensor, int], None]
    ) -> None:
        under_way = [self._pool.submit(work, *piece) for piece in pieces]
        wait(under_way)  # the memory is the caller's again only when no thread uses it
        for each in under_way:
            each.result()

    def _bouncing(self) -> BounceBuffers:
        with self._lock:
            if self._made is None:
                self._made = BounceBuffers(self.threads, self.piece, self.device)
            return self._made

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown()


def _pieces(flat: torch.Tensor, size: int, start: int = 0) -> list[tuple[torch.Tensor, int]]:
    """Return the bytes from `start` on in pieces, each with its place."""
    return [(flat[at : at + size], at) for at in range(start, flat.nbytes, size)]


def _reachable(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.data_ptr() % _PAGE == 0


def _whole(request: Request, number: int, tensor: torch.Tensor, offset: int) -> None:
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    left, past_cache = memoryview(memory).cast("B"), True
    while left:
        try:
            done = request(number, [left], offset)
        except OSError as error:
            if error.errno != EINVAL or not past_cache:
                raise
            # Some file systems take O_DIRECT, and refuse the request.
            past_cache = direct(number, wanted=False)
            continue
        if not done:
            msg = "the file is shorter than what was to be read"
            raise OSError(msg)
        left, offset = left[done:], offset + done
