"""Stores the inputs of blocks in RAM, or on the disk, until the backward.

A block's inputs are copied back to the device while the backward of the following block still runs.
"""

from __future__ import annotations

import weakref
from collections import deque
from typing import TYPE_CHECKING

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from neaptide_toolkit.offload import Lane, Ticket, computed
from neaptide_toolkit.offload.disk import copy as copy_disk
from neaptide_toolkit.offload.disk import region_of
from neaptide_toolkit.offload.layout import Place
from neaptide_toolkit.offload.storages import is_dense
from neaptide_toolkit.recompute import ChangedInPlaceError, KeptArgument

from .call import HostBuffer, Waiting

if TYPE_CHECKING:
    from collections.abc import Callable

    from .call import Call


_AHEAD = 2
"""Copies that are not waited for: the host need not be further ahead of the device."""


class Inputs:
    """Moves blocks' inputs to RAM and back.

    Args:
        device: the device of the blocks.
        inwards: the lane (queue) of copies to the device.
        outwards: the lane of copies to the host.
        allocate: `allocate(bytes)` returns a uint8 tensor in RAM or on the disk.
    """

    def __init__(
        self,
        device: torch.device,
        inwards: Lane,
        outwards: Lane,
        allocate: Callable[[int], torch.Tensor],
    ) -> None:
        self._device = device
        self._inwards, self._outwards = inwards, outwards
        self._allocate = allocate
        self._calls: list[weakref.ref[Call]] = []
        self._known = WeakTensorKeyDictionary()
        self._pool: dict[int, list[HostBuffer]] = {}
        self._under_way: deque[Ticket] = deque()
        self.host_bytes = 0
        """Bytes allocated in RAM and on the disk so far."""

    def leave(self, call: Call) -> None:
        """For the inputs of a call that require gradients, start the copies to RAM."""
        self._calls = [reference for reference in self._calls if reference() is not None]
        for tensor, version, kept in call.arguments.passed:
            here = tensor.device.type == self._device.type
            if isinstance(kept, KeptArgument) and tensor.requires_grad and here:
                call.waiting.append((kept, self._moved(tensor, version, kept)))
                kept.tensor = _emptied(kept.tensor)
        if call.waiting:
            self._calls.append(weakref.ref(call))

    def bring(self, call: Call) -> None:
        """Copy a call's inputs back for its backward, and prefetch the previous call's inputs."""
        for _, waiting in call.waiting:
            self._fetch(waiting)
        for kept, waiting in call.waiting:
            if kept.tensor._version != kept.version:
                # The change may have been made while the input was copied.
                msg = (
                    f"an input of block {call.unit.block.name!r} was changed in place between its "
                    f"forward and backward; make the change on a copy, or exclude the block"
                )
                raise ChangedInPlaceError(msg)
            waiting.arrival.wait()
            assert waiting.device is not None, "it was fetched"
            kept.tensor, kept.version = waiting.device, waiting.device._version
        for _, waiting in call.waiting:
            waiting.device = None
        live = [found for reference in self._calls if (found := reference()) is not None]
        if call in live:
            place = live.index(call)
            for _, waiting in live[place - 1].waiting if place else ():
                self._fetch(waiting)
        self._calls = [reference for reference in self._calls if reference() is not call]
        call.waiting = []

    def _moved(self, tensor: torch.Tensor, version: int, kept: KeptArgument) -> Waiting:
        known = self._known.get(tensor)  # type: ignore[no-untyped-call]  # torch leaves it so
        if known is not None and known[0] == version and not kept.copied:
            waiting: Waiting = known[1]
            return waiting
        source = kept.tensor
        buffer = self._buffer(source.nbytes)
        like = _place_of(source)
        place = buffer.view(like)
        on_disk = region_of(buffer.flat) is not None
        if on_disk and not _is_laid_out(source, like):
            source = source.clone()

        def copy() -> None:
            if on_disk:
                copy_disk(buffer.flat, _bytes(source))
            else:
                place.copy_(source, non_blocking=True)

        self._outwards.hold(source)
        left = self._outwards.submit("inputs leave", copy, (computed(self._device), buffer.read))
        waiting = Waiting(buffer, like, left)
        self._keep_near(waiting.left)
        weakref.finalize(waiting, self._returned, buffer)
        if not kept.copied:
            self._known[tensor] = (version, waiting)
        return waiting

    def _fetch(self, waiting: Waiting) -> None:
        if waiting.device is not None:
            return
        like, flat = waiting.place, waiting.host.flat
        device = torch.empty_strided(
            like.shape, like.strides, dtype=like.dtype, device=self._device
        )
        place = waiting.host.view(like)

        def copy() -> None:
            if region_of(flat) is not None:
                copy_disk(_bytes(device), flat)
            else:
                device.copy_(place, non_blocking=True)

        self._inwards.hold(device)  # its memory must not be reused before the copy ends
        after = (computed(self._device), waiting.left)
        ticket = self._inwards.submit("inputs return", copy, after)
        waiting.arrival = waiting.host.read = ticket
        self._keep_near(waiting.arrival)
        waiting.device = device

    def _keep_near(self, ticket: Ticket) -> None:
        """Let the host wait for earlier copies.

        The device's memory of an input is free when its copy ended. A host that is far ahead would
        take new memory for each input.
        """
        self._under_way.append(ticket)
        if len(self._under_way) > _AHEAD:
            self._under_way.popleft().finish()

    def _buffer(self, nbytes: int) -> HostBuffer:
        free = self._pool.get(nbytes)
        if free:
            return free.pop()
        self.host_bytes += nbytes
        return HostBuffer(self._allocate(nbytes))

    def _returned(self, buffer: HostBuffer) -> None:
        self._pool.setdefault(buffer.flat.nbytes, []).append(buffer)


def _emptied(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor without memory that shares the version counter of `tensor`."""
    emptied = tensor.detach()
    emptied.data = tensor.new_empty(0)
    return emptied


def _place_of(tensor: torch.Tensor) -> Place:
    """Return how a copy of a tensor is laid out."""
    like = tensor if is_dense(tensor) else torch.empty_like(tensor, device="meta")
    return Place(0, tensor.dtype, tuple(tensor.shape), like.stride())


def _is_laid_out(tensor: torch.Tensor, like: Place) -> bool:
    """Return whether the memory of `tensor` has its values as `like` has them, without gaps."""
    return tensor.stride() == like.strides and not (tensor.is_conj() or tensor.is_neg())


def _bytes(dense: torch.Tensor) -> torch.Tensor:
    """Return the memory of a tensor without gaps, uint8 `[n]`."""
    return dense.detach().as_strided((dense.numel(),), (1,)).view(torch.uint8)
