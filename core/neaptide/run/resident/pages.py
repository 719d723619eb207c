"""Pages of RAM outside torch's allocator. Pages are freed when no tensor uses them."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

import torch


class Pages(mmap.mmap):
    """Anonymous pages of memory, unmapped when this object is garbage-collected."""

    address: int


P = TypeVar("P", bound=Pages)
_mapped_now: WeakSet[Pages] = WeakSet()


def mapped(size: int, kind: type[P]) -> tuple[P, torch.Tensor]:
    """Map zeroed pages for `size` bytes.

    A page takes RAM only after the first write to the page.
    """
    try:
        pages = kind(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        msg = f"cannot reserve {size} bytes of RAM: {error}; see `ulimit -v`, or stream less"
        raise MemoryError(msg) from error
    # Huge pages need fewer page faults and table entries; some Linux kernels do not have them.
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    flat = torch.frombuffer(pages, dtype=torch.uint8)[:size]
    pages.address = flat.data_ptr()
    _mapped_now.add(pages)
    return pages, flat


def mapped_slabs() -> WeakSet[Pages]:
    """Return all `Pages` that are mapped in this process."""
    return _mapped_now.copy()
