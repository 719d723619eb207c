"""Tensors whose memory nobody writes. They may be larger than the machine's RAM."""

from __future__ import annotations

import mmap
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING

import torch

from neaptide_toolkit.offload.pages import NO_RESERVE, PRIVATE

if TYPE_CHECKING:
    from collections.abc import Iterator

_resizable: ContextVar[bool] = ContextVar("resizable", default=False)
_LARGE = 2**26
"""Bytes from which memory comes from the kernel and not from PyTorch: Linux refuses PyTorch one
tensor that is larger than RAM, for it cannot know that nobody writes it."""


@contextmanager
def resizable() -> Iterator[None]:
    """Within this context, the storage of a tensor that RAM could hold can be resized.

    torch's `fully_shard` frees the weights of a block in this way.
    """
    token = _resizable.set(True)
    try:
        yield
    finally:
        _resizable.reset(token)


def reserved(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the CPU without values.

    Raises:
        MemoryError: the address space is too small.
    """
    nbytes = _extent(size, stride) * dtype.itemsize
    if nbytes < _LARGE:
        return torch.empty_strided(size, stride, dtype=dtype)
    # Where PyTorch is deterministic, it writes all that it allocates.
    if _resizable.get() and not torch.are_deterministic_algorithms_enabled():
        with suppress(RuntimeError):  # larger than RAM
            return torch.empty_strided(size, stride, dtype=dtype)
    try:
        pages = mmap.mmap(-1, nbytes, flags=PRIVATE | NO_RESERVE)
    except (OSError, ValueError, OverflowError) as error:
        msg = f"a plan cannot reserve addresses for a tensor of {nbytes} bytes: {error}"
        raise MemoryError(msg) from error
    storage = torch.frombuffer(pages, dtype=torch.uint8).untyped_storage()
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> int:
    if 0 in size:
        return 0
    return 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
