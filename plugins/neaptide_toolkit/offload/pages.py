"""Pages of RAM outside torch's allocator. Pages are freed when no tensor uses them."""

from __future__ import annotations

import mmap
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Pages(mmap.mmap):
    """Anonymous pages of memory, unmapped when this object is garbage-collected."""

    address: int


P = TypeVar("P", bound=Pages)
_mapped_now: WeakSet[Pages] = WeakSet()
_watching: ContextVar[Callable[[Pages, torch.Tensor], None] | None] = ContextVar(
    "watching", default=None
)
PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
NO_RESERVE = 0x4000 if sys.platform == "linux" else 0  # Python 3.11 has no name for it


@contextmanager
def watched(listener: Callable[[Pages, torch.Tensor], None]) -> Iterator[None]:
    """Within this context, pages are reserved beyond the RAM of the machine, for nobody writes.

    `listener` is called with all new pages, and with the tensor of their bytes.
    """
    token = _watching.set(listener)
    try:
        yield
    finally:
        _watching.reset(token)


def mapped(size: int, kind: type[P]) -> tuple[P, torch.Tensor]:
    """Map zeroed pages for `size` bytes.

    A page takes RAM only after the first write to the page.
    """
    listener = _watching.get()
    try:
        pages = kind(-1, max(size, 1), flags=PRIVATE | (NO_RESERVE if listener else 0))
    except (OSError, ValueError, OverflowError) as error:
        msg = f"cannot reserve {size} bytes of RAM: {error}; see `ulimit -v`, or stream less"
        raise MemoryError(msg) from error
    # Huge pages need fewer page faults and table entries; some Linux kernels do not have them.
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    flat = torch.frombuffer(pages, dtype=torch.uint8)[:size]
    pages.address = flat.data_ptr()
    _mapped_now.add(pages)
    if listener is not None:
        listener(pages, flat)
    return pages, flat


def mapped_slabs() -> WeakSet[Pages]:
    """Return all `Pages` that are mapped in this process."""
    return _mapped_now.copy()
