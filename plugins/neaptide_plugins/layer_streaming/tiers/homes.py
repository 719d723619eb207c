"""Allocates what stays on the host: in RAM while there is room, then on the disk."""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide_toolkit.machine.pretended import kind_of
from neaptide_toolkit.offload import Slab

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.offload.disk import PretendedFile, TierFile


def is_the_device(device: torch.device, *, on_disk: bool) -> bool:
    """Return whether the device computes with the memory of homes; those on a disk are copied."""
    return kind_of(device) == "cpu" and not on_disk


@attrs.frozen(eq=False)
class DiskTier:
    """The files for what does not fit in RAM."""

    files: tuple[TierFile | PretendedFile, ...]
    """One in each directory. Buffers alternate between them."""
    ram: int
    """Bytes that stay in RAM, of weights, optimizer state and inputs that may be on the disk."""


class Homes:
    """The memory of weights, optimizer state, gradients and inputs on the host.

    The weights are allocated before the state, and so stay in RAM longer: a step reads a weight
    twice and writes it once, and reads and writes state once, as it does the inputs of blocks. The
    blocks are used in the same order in every step, forwards and backwards. A fixed choice then
    reads no more of the disk than a cache that knows the order (docs/decisions/0024).

    Args:
        device: the device to which the memory is copied.
        pin: register the RAM with the device.
        disk: what does not fit in RAM goes there; None keeps everything in RAM.
    """

    def __init__(self, device: torch.device, *, pin: bool, disk: DiskTier | None) -> None:
        self._device, self._pin = device, pin
        self._left = 0 if disk is None else disk.ram
        self.files: Sequence[TierFile | PretendedFile] = () if disk is None else disk.files
        self._next = cycle(self.files)
        self.unpinned: str | None = None
        """The reason why memory could not be pinned; None if it is, or need not be."""

    @property
    def are_on_the_device(self) -> bool:
        """Whether the device computes with this memory itself: nothing need be copied to it."""
        return is_the_device(self._device, on_disk=bool(self.files))

    def in_ram(self, size: int) -> torch.Tensor:
        """Return zeroed RAM, uint8 `[size]`."""
        slab = Slab.on_host_of(self._device, size, pin=self._pin)
        self.unpinned = self.unpinned or slab.reason
        return slab.flat

    def on_device(self, size: int) -> torch.Tensor:
        """Return memory of the device for copies from the host, uint8 `[size]`, uninitialised."""
        if self.files and kind_of(self._device) == "cpu":
            return Slab(size).flat  # page-aligned, so that the disk reads and writes it directly
        return torch.empty(size, dtype=torch.uint8, device=self._device)

    def allocate(self, size: int) -> torch.Tensor:
        """Return zeroed memory, uint8 `[size]`, in RAM or on the disk."""
        if not self.files:
            return self.in_ram(size)
        if size <= self._left:
            self._left -= size
            return self.in_ram(size)
        return next(self._next).allocate(size)

    def close(self) -> None:
        """End the threads that read and write the disk. The tensors stay."""
        for file in self.files:
            file.close()
