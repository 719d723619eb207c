"""Where glibc takes memory for large tensors: from pages of their own, or from the heap.

glibc maps pages for a large block, and unmaps them when the block is freed. But after the first
free it takes blocks of that size, up to 32 MiB, from the heap. In the first steps of a run, small
objects that stay, such as an optimizer's step counts, then come to lie between gradients and other
temporary tensors, and the heap cannot use the room again: hundreds of MiB. Later steps leave
nothing behind, and are faster with temporary tensors from the heap.
"""

from __future__ import annotations

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Names of settings of `mallopt` in malloc.h."""
_LARGE = 1 << 20
_MOST = 32 << 20
"""The largest threshold; that of a program that has freed a block of that size."""


def give_back_large() -> None:
    """From now on, memory of 1 MiB and more is given back to the system when it is freed."""
    _set(_LARGE)


def keep_large() -> None:
    """From now on, the heap keeps up to 64 MiB that is freed, as usual: the next step needs it."""
    _set(_MOST)


def _set(threshold: int) -> None:
    if not sys.platform.startswith("linux") or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # another C library than glibc may not have it
        mallopt(_MMAP_THRESHOLD, threshold)
        mallopt(_TRIM_THRESHOLD, 2 * _MOST)  # else a set threshold makes it 128 KiB
