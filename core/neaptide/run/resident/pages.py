"""Memory of RAM in pages of its own, which goes back to the system when nothing lies in it."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

import torch

if TYPE_CHECKING:
    from collections.abc import Container


class Pages(mmap.mmap):
    """Anonymous pages; forgotten, they are unmapped."""

    address: int


P = TypeVar("P", bound=Pages)
_mapped_now: WeakSet[Pages] = WeakSet()


def mapped(size: int, kind: type[P]) -> tuple[P, torch.Tensor]:
    """Map pages for `size` bytes, zero and taken when first written.

    Returns them with a uint8 tensor `[size]` over them, page-aligned, which keeps them as long as
    any view of it lives. MemoryError where the system has no room.
    """
    try:
        pages = kind(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, ValueError, OverflowError) as error:
        msg = f"cannot reserve {size} bytes of RAM: {error}; see `ulimit -v`, or stream less"
        raise MemoryError(msg) from error
    # Fewer page faults and table entries; a kernel may be built without.
    with suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    flat = torch.frombuffer(pages, dtype=torch.uint8)[:size]
    pages.address = flat.data_ptr()
    _mapped_now.add(pages)
    return pages, flat


def mapped_slabs() -> WeakSet[Pages]:
    """Return all pages of the process that are mapped now, whoever holds them."""
    return _mapped_now.copy()


def slab_bytes(beyond: Container[object] = ()) -> int:
    """Return the bytes of all pages that are mapped now, but for those in `beyond`."""
    return sum(len(pages) for pages in mapped_slabs() if pages not in beyond)


def lies_in_slab(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is among them."""
    address = tensor.data_ptr()
    return any(pages.address <= address < pages.address + len(pages) for pages in mapped_slabs())
