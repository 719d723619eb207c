"""Evicts tensors: moves their storages to RAM and back to the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.text import called, one_line

from .pages import Pages, mapped
from .storages import as_bytes, is_dense, moved_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from neaptide.api.spans import Evictable, Refuge, SharedStorage


ALIGNMENT = 256
"""Alignment of CUDA's allocator, in bytes. Some kernels are slower on less aligned memory."""


@attrs.define(eq=False)
class Moved:
    """A host copy of one storage, and the tensors that use this copy."""

    host: torch.Tensor
    """A view of the buffer, uint8 `[bytes]`."""
    tensors: tuple[torch.Tensor, ...]
    firsts: tuple[int, ...]
    """The storage offset of each tensor, in elements."""
    device: torch.device

    __repr__ = one_line

    def put_back(self, storage: torch.UntypedStorage) -> None:
        """Rebind the tensors that still use the host copy; afterwards they use `storage`."""
        here = self.host.untyped_storage()._cdata  # noqa: SLF001 - the storage's identity
        for tensor, first in zip(self.tensors, self.firsts, strict=True):
            if tensor.untyped_storage()._cdata == here:  # noqa: SLF001 - as above
                moved_in(tensor, storage, first)


def places(storages: Sequence[SharedStorage]) -> tuple[list[int], int]:
    """Return the offset of each storage in one buffer. Also return the buffer's size in bytes."""
    offsets, size = [], 0
    for shared in storages:
        offsets.append(size)
        size += -(-shared.bytes // ALIGNMENT) * ALIGNMENT
    return offsets, size


def rebind(storages: Sequence[SharedStorage], flat: torch.Tensor, into: list[Moved]) -> None:
    """Let the tensors of `storages` use `flat`, which has a copy of each storage's bytes.

    Adds one `Moved` per storage to `into`. After an error or an interrupt, no tensor is rebound.
    """
    offsets, _ = places(storages)
    into += [
        Moved(
            flat[offset : offset + shared.bytes],
            shared.tensors,
            tuple(int(tensor.storage_offset()) for tensor in shared.tensors),
            shared.storage.device,
        )
        for offset, shared in zip(offsets, storages, strict=True)
    ]
    try:
        for offset, moved in zip(offsets, into, strict=True):
            for tensor, first in zip(moved.tensors, moved.firsts, strict=True):
                moved_in(tensor, flat.untyped_storage(), offset // tensor.itemsize + first)
    except BaseException:
        for shared, moved in zip(storages, into, strict=True):
            for tensor, first in zip(moved.tensors, moved.firsts, strict=True):
                moved_in(tensor, shared.storage, first)
        into.clear()
        raise


class InRam:
    """The default refuge (storage of evicted tensors): pageable RAM. Copies are synchronous."""

    readable = True

    def __init__(self) -> None:
        self._moved: list[Moved] = []

    def __repr__(self) -> str:
        return called(self, f"{len(self._moved)} storages")

    def take(self, storages: list[SharedStorage]) -> None:
        """Copy the storages to a new buffer, which is freed when no tensor uses the buffer."""
        offsets, size = places(storages)
        _, flat = mapped(size, Pages)
        for offset, shared in zip(offsets, storages, strict=True):
            flat[offset : offset + shared.bytes].copy_(as_bytes(shared.storage))
        rebind(storages, flat, self._moved)

    def give_back(self) -> None:
        """Copy the storages back. After an error, a second call copies the remaining storages."""
        while self._moved:
            moved = self._moved[-1]
            room = torch.empty(moved.host.nbytes, dtype=torch.uint8, device=moved.device)
            moved.put_back(room.copy_(moved.host).untyped_storage())
            self._moved.pop()


class Evictions:
    """The evicted tensors of a store.

    The store moves evicted optimizer state back before the optimizer steps or loads a state.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._homes: dict[torch.Tensor, torch.device] = {}
        self._state: list[Refuge] = []
        self._open: list[Callable[[], None]] = []
        """Functions that move evicted weights back."""
        self._hooks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return called(self, f"{len(self._homes)} weights", f"{len(self._state)} of state")

    def __bool__(self) -> bool:
        """Return whether a weight is evicted."""
        return bool(self._homes)

    def __contains__(self, weight: torch.Tensor) -> bool:
        """Return whether `weight` is evicted."""
        return weight in self._homes

    def home(self, weight: torch.Tensor) -> torch.device:
        """Return the device of a weight; if it is evicted, the device before the eviction."""
        return self._homes.get(weight, weight.device)

    def weights(self, found: Evictable, refuge: Refuge | None) -> Callable[[], None]:
        """Evict weights; return a function that moves them back.

        A loan reads an evicted weight from the refuge. ValueError if `refuge.readable` is False.
        """
        kept = refuge or InRam()
        if not kept.readable:
            msg = f"weights need a refuge in which they can be read, and {kept!r:.60} is not one"
            raise ValueError(msg)
        homes = {each: each.device for shared in found.storages for each in shared.tensors}
        kept.take(found.storages)
        self._homes |= homes

        def back() -> None:
            if homes:  # a second call must not move weights that were evicted later
                kept.give_back()
                for each in homes:
                    del self._homes[each]
                homes.clear()
                self._open.remove(back)

        if homes:
            self._open.append(back)
        return back

    def state(self, found: Evictable, refuge: Refuge | None) -> Callable[[], None]:
        """Evict optimizer state; return a function that moves the state back if still evicted."""
        kept = refuge or InRam()
        kept.take(found.storages)
        self._state.append(kept)
        if not self._hooks:
            for register, hook in (
                (self._optimizer.register_step_pre_hook, self._all_back),
                (self._optimizer.register_load_state_dict_pre_hook, self._all_back),
                (self._optimizer.register_state_dict_pre_hook, self.show),
            ):
                self._hooks.append(register(hook).remove)

        def back() -> None:
            if kept in self._state:
                self._back(kept)

        return back

    def close(self) -> None:
        """Move all evicted tensors back and remove the hooks from the optimizer."""
        self._all_back()
        for back in reversed(tuple(self._open)):
            back()
        while self._hooks:
            self._hooks.pop()()

    def show(self, *_: object) -> None:
        """Move optimizer state back from each refuge whose `readable` is False."""
        self._all_back(readable=False)

    def _all_back(self, *_: object, readable: bool = True) -> None:
        for refuge in tuple(self._state):
            if readable or not refuge.readable:
                self._back(refuge)

    _all_back.reads_gradients = False  # type: ignore[attr-defined]  # as a hook of the optimizer

    def _back(self, refuge: Refuge) -> None:
        self._state.remove(refuge)  # before `give_back`, which may call `show` again
        try:
            refuge.give_back()
        except BaseException:
            self._state.append(refuge)
            raise


def is_whole(tensor: torch.Tensor) -> bool:
    """Return whether `tensor` is a plain torch.Tensor that fills its storage; views may exist."""
    if type(tensor.data) is not torch.Tensor or tensor.layout != torch.strided:
        return False
    own = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return own and is_dense(tensor)
