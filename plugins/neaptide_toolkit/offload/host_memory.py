"""Host buffers of the exact size, page-aligned, and registered with CUDA where that is possible."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import torch

from neaptide.io.units import size as written
from neaptide.run.resident.pages import Pages, mapped, mapped_slabs
from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

PIECE = 4 * 2**30
"""Bytes registered at a time, where there are places to cut."""
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device of the process."""


class Cudart(Protocol):
    """What is used of `torch.cuda.cudart()`; an error is a number that is not 0."""

    def cudaHostRegister(self, address: int, size: int, flags: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Lock a range of pages and make it known to the driver."""

    def cudaHostUnregister(self, address: int, /) -> Any:  # noqa: N802 - CUDA's name
        """Undo it, by the range's beginning."""

    def cudaGetErrorString(self, error: Any, /) -> str:  # noqa: N802 - CUDA's name
        """Say what an error means."""


class Slab:
    """A buffer in RAM of exactly `size` bytes, its pages zero and taken when first written.

    Unlike torch's own pinned memory, which takes the next power of two. The memory goes back when
    the slab is closed or forgotten, and no tensor is left that lies in it. Copies to or from a
    device must be over by then.

    Args:
        size: in bytes.
        cudart: what registers it; None leaves it pageable.
        cuts: offsets where a registered piece may end, such as those of blocks: the driver
            refuses a copy that reaches over two. Only multiples of a page count; without any,
            the slab is registered in one piece.
        piece: bytes registered at a time, cuts permitting.

    Attributes:
        flat: uint8 `[size]`, page-aligned.
        pinned: whether all of it is registered, so that copies are asynchronous.
        reason: why it is not, in a line, though it was asked for; None otherwise.
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
        """Return a slab for copies to and from `device`: registered if that is a GPU, and `pin`."""
        if device.type != "cuda" or not pin:
            return cls(size)
        slab = cls(size, cudart=torch.cuda.cudart(), cuts=cuts)  # type: ignore[no-untyped-call]  # torch leaves it so
        if slab.reason is not None:
            # The failure is still the driver's last error, which the next kernel would be blamed
            # for; torch clears it when it raises.
            with suppress(RuntimeError):
                torch.ones(1, device=device)
        return slab

    @property
    def flat(self) -> torch.Tensor:
        """The buffer; ValueError after `close`."""
        if self._flat is None:
            msg = f"the host buffer of {self.size} bytes is closed; make a new one"
            raise ValueError(msg)
        return self._flat

    def close(self) -> None:
        """Give the buffer up; what tensors still use stays until they are gone."""
        self._flat = None
        self.pinned = False


class _RegisteredPages(Pages):
    """Anonymous pages; forgotten, they are unregistered first and unmapped then."""

    _cudart: Cudart
    _registered: tuple[int, ...] = ()

    def register(self, cudart: Cudart, address: int, ends: list[int]) -> str | None:
        """Register all pieces that end at `ends`, or none; return why none, in a line."""
        self._cudart = cudart
        start = 0
        for end in ends:
            error = cudart.cudaHostRegister(address + start, end - start, _PORTABLE)
            if int(error):
                # Half registered, every copy across the border would fail.
                self._unregister()
                return (
                    f"CUDA cannot pin {end - start} bytes, {start} of {ends[-1]} being pinned: "
                    f"{cudart.cudaGetErrorString(error)}; raise `ulimit -l`, or pin less"
                )
            self._registered += (address + start,)
            start = end
        # As CUDA's own host memory: a child process would copy all of it, pinned, when forked.
        self.madvise(mmap.MADV_DONTFORK)
        return None

    def _unregister(self) -> None:
        for address in self._registered:
            self._cudart.cudaHostUnregister(address)
        self._registered = ()

    def __del__(self) -> None:
        self._unregister()


def slab_bytes(beyond: Container[object] = ()) -> int:
    """Return the bytes of all pages that are mapped now, except those in `beyond`."""
    return sum(len(pages) for pages in mapped_slabs() if pages not in beyond)


def lies_in_slab(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory is in pages that are mapped now."""
    address = tensor.data_ptr()
    return any(pages.address <= address < pages.address + len(pages) for pages in mapped_slabs())


def _ends(size: int, cuts: Iterable[int], piece: int) -> Iterator[int]:
    """Yield where each piece ends: as few as there can be of at most `piece` bytes each."""
    start = last = 0
    inside = sorted({cut for cut in cuts if 0 < cut < size and cut % mmap.PAGESIZE == 0})
    for cut in (*inside, size):
        if cut - start > piece and last > start:
            yield last
            start = last
        last = cut
    yield size
