"""Host buffers of exact size, page-aligned, and page-locked for the device if that is possible."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neaptide.devices import api_of
from neaptide.io.units import size as written
from neaptide.text import called
from neaptide_toolkit.machine.devices import lacks

from .pages import Pages, mapped, mapped_slabs

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

PIECE = 4 * 2**30
"""Largest number of bytes that one call registers with CUDA, if the buffer may be divided."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""


class Cudart(Protocol):
    """Functions of `torch.cuda.cudart()`. `cudaHost*` functions return 0 or an error code."""

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Page-lock a range and register it with the driver."""

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Unregister the range that begins at `address`."""

    def cudaGetErrorString(self, error: Any, /) -> str:  # noqa: N802 - CUDA's name
        """Return the text of an error."""


class Slab:
    """A buffer in RAM of exactly `size` bytes; a page is zero, and is allocated at its first write.

    By contrast, torch rounds the size of pinned memory up to the next power of two. The memory of
    a slab is freed when the slab is closed or garbage-collected and no tensor uses the memory. All
    copies to or from a device must end before the memory is freed.

    Args:
        size: in bytes.
        cudart: registers the buffer with CUDA; None leaves it pageable.
        cuts: offsets in bytes at which the buffer may be divided into pieces, such as the borders
            of blocks. Each piece is registered by a separate call, and the driver refuses a copy
            across two pieces. Offsets that are not multiples of the page size are ignored. Without
            cuts the slab is registered in one piece.
        piece: largest number of bytes of a piece; a piece is larger if no cut is inside it.

    Attributes:
        flat: uint8 `[size]`, page-aligned.
        pinned: True if the whole slab is registered. Then copies are asynchronous.
        reason: why the slab is not registered although that was asked, in one line; else None.
    """

    def __init__(
        self,
        size: int,
        *,
        cudart: Cudart | None = None,
        cuts: Iterable[int] = (),
        piece: int = PIECE,
    ) -> None:
        if size < 0:
            msg = f"a host buffer has at least 0 bytes (got {size})"
            raise ValueError(msg)
        self.size = size
        self.pinned = False
        self.reason: str | None = None
        self._flat: torch.Tensor | None
        pages, self._flat = mapped(size, _RegisteredPages)
        if cudart is not None and size:
            ends = list(_ends(size, cuts, piece))
            self.reason = pages.register(cudart, pages.address, ends)
            self.pinned = self.reason is None

    def __repr__(self) -> str:
        return called(self, written(self.size), "pinned" if self.pinned else "pageable")

    @classmethod
    def on_host_of(
        cls, device: torch.device, size: int, *, pin: bool = True, cuts: Iterable[int] = ()
    ) -> Slab:
        """Return a slab for copies to and from `device`.

        With `pin` it is registered for the device. If that fails, or if torch cannot do it for such
        a device, the slab is pageable and `reason` says why. A CPU needs no registration.
        """
        if device.type == "cpu" or not pin:
            return cls(size)
        reason = lacks(device, "registered memory")
        if reason is not None:
            slab = cls(size)
            slab.reason = reason
            return slab
        slab = cls(size, cudart=api_of(device).cudart(), cuts=cuts)
        if slab.reason is not None:
            # The failed cudaHostRegister set the driver's last error. The next kernel launch would
            # report this error. The launch below makes torch raise and clear the error.
            with suppress(RuntimeError):
                torch.ones(1, device=device)
        return slab

    @property
    def flat(self) -> torch.Tensor:
        """The buffer; raises ValueError after `close`."""
        if self._flat is None:
            msg = f"the host buffer of {self.size} bytes is closed; make a new one"
            raise ValueError(msg)
        return self._flat

    def close(self) -> None:
        """Release the buffer; its memory is freed once no tensor uses it."""
        self._flat = None
        self.pinned = False


class _RegisteredPages(Pages):
    """Anonymous pages that are unregistered, then unmapped, when garbage-collected."""

    _cudart: Cudart
    _registered: tuple[int, ...] = ()

    def register(self, cudart: Cudart, address: int, ends: list[int]) -> str | None:
        """Register the pieces that end at `ends`, all or none; return a one-line error, or None."""
        self._cudart = cudart
        start = 0
        for end in ends:
            error = cudart.cudaHostRegister(address + start, end - start, _PORTABLE)
            if int(error):
                # If only a part were registered, every copy across its border would fail.
                self._unregister()
                return (
                    f"CUDA cannot pin {end - start} bytes after {start} of {ends[-1]}: "
                    f"{cudart.cudaGetErrorString(error)}; raise `ulimit -l`, or pin less"
                )
            self._registered += (address + start,)
            start = end
        # A forked child process would copy all pinned pages. CUDA's own host memory is excluded
        # from forks, too.
        self.madvise(mmap.MADV_DONTFORK)
        return None

    def _unregister(self) -> None:
        for address in self._registered:
            self._cudart.cudaHostUnregister(address)
        self._registered = ()

    def __del__(self) -> None:
        self._unregister()


def slab_bytes(beyond: Container[object] = ()) -> int:
    """Return the bytes of all slabs that are mapped now, except the slabs in `beyond`."""
    return sum(len(pages) for pages in mapped_slabs() if pages not in beyond)


def lies_in_slab(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is in a slab that is mapped now."""
    address = tensor.data_ptr()
    return any(pages.address <= address < pages.address + len(pages) for pages in mapped_slabs())


def _ends(size: int, cuts: Iterable[int], piece: int) -> Iterator[int]:
    """Cut at `cuts` into the fewest pieces of at most `piece` bytes; yield each piece's end."""
    start = last = 0
    inside = sorted({cut for cut in cuts if 0 < cut < size and cut % mmap.PAGESIZE == 0})
    for cut in (*inside, size):
        if cut - start > piece and last > start:
            yield last
            start = last
        last = cut
    yield size
