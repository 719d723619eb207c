"""Finds the tensors in an optimizer's state, whatever its class, and who shares their memory."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import attrs
import torch
from torch import nn

from neaptide_toolkit.offload import users

SMALLEST = 1024
"""Bytes; what is smaller stays: to move it takes longer than its room is worth."""

_ALIGNED = 64
"""Bytes to which torch aligns what it allocates on a CPU."""

_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)
_NOT_STATE = (nn.Module, torch.optim.Optimizer)


@attrs.frozen(eq=False)
class Shared:
    """Tensors that lie in one storage, and nobody else in it."""

    storage: torch.UntypedStorage
    tensors: tuple[torch.Tensor, ...]

    @property
    def bytes(self) -> int:
        """Bytes of the storage, which may be more than those of the tensors."""
        return self.storage.nbytes()


@attrs.frozen(eq=False)
class State:
    """The part of an optimizer's state that may leave the device."""

    optimizer: torch.optim.Optimizer
    parameters: Sequence[torch.Tensor]
    """Those whose entries may leave."""
    elsewhere: Sequence[torch.Tensor]
    """Tensors whose memory must stay: weights, gradients, buffers."""
    device: torch.device
    """Where the run computes."""

    @property
    def entries(self) -> list[Any]:
        """The parameters' entries."""
        state = self.optimizer.state
        return [state[each] for each in self.parameters if each in state]

    @property
    def others(self) -> Iterator[torch.Tensor]:
        """What else there is: tensors of other entries and of the groups' settings, too."""
        own = set(self.parameters)
        yield from self.elsewhere
        yield from tensors_in([v for k, v in self.optimizer.state.items() if k not in own])
        yield from tensors_in(self.optimizer.param_groups)

    def found(self) -> Found:
        """Return what of it can be moved."""
        return find(self.entries, self.others, self.device)


@attrs.frozen(kw_only=True)
class Room:
    """Bytes by what becomes of them."""

    leaves: int
    """Free on the device where nothing is updated."""
    codes: int = 0
    """Taken on the device instead."""
    host: int = 0
    """Taken on the host meanwhile."""
    kept: int = 0
    """Taken on the host already, for the next time."""


@attrs.frozen(eq=False)
class Found:
    """What may leave the device, and what may not.

    `storages` keeps memory alive: let it go before asking what was freed.
    """

    storages: tuple[Shared, ...]
    left: Mapping[str, int]
    """Bytes left where they are, by why."""

    @property
    def bytes(self) -> int:
        """Bytes that may leave."""
        return sum(shared.bytes for shared in self.storages)


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """Yield each tensor once: in mappings, sequences, sets, attributes and wrapper tensors.

    A module or another optimizer that the state refers to is not looked into.
    """
    seen: dict[int, object] = {}  # the objects themselves, so that no id is used again
    queue = deque([tree])
    while queue:
        value = queue.popleft()
        if isinstance(value, _ATOMS) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            inner = _wrapped(value)
            if inner:
                queue.extend(inner)
            else:
                yield value
        else:
            queue.extend(_children(value))


def find(
    entries: Iterable[object],
    elsewhere: Iterable[torch.Tensor],
    device: torch.device,
    smallest: int = SMALLEST,
) -> Found:
    """Return the storages on `device` in which tensors of `entries` lie, and nothing else.

    Args:
        entries: of the optimizer's state.
        elsewhere: tensors whose memory must stay: weights, gradients, buffers, other entries.
        device: where the run computes.
        smallest: bytes of a storage worth moving.
    """
    foreign = {_storage_id(tensor) for tensor in elsewhere if _has_storage(tensor)}
    members: dict[int, dict[int, torch.Tensor]] = {}
    left: Counter[str] = Counter()
    for tensor in tensors_in(list(entries)):
        if not is_on(tensor.device, device):
            continue
        if not _has_storage(tensor):
            left["of another layout than strided"] += _nbytes(tensor)
        else:
            members.setdefault(_storage_id(tensor), {})[id(tensor)] = tensor
    storages = []
    for key, group in members.items():
        shared = _shared(list(group.values()))
        if shared.bytes < smallest:
            continue
        reason = "shared with a weight, a gradient or a buffer" if key in foreign else _held(shared)
        if reason is None:
            storages.append(shared)
        else:
            left[reason] += shared.bytes
    return Found(tuple(storages), dict(left))


def is_on(device: torch.device, wanted: torch.device) -> bool:
    """Return whether `device` is the one wanted, which need not name an index."""
    if device.type != wanted.type or wanted.index is None:
        return device.type == wanted.type
    return device.index is None or device.index == wanted.index


def place(tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int) -> None:
    """Let `tensor` lie in another storage, as it does in its own, from the byte `offset` on."""
    moved_in(tensor, storage, offset // tensor.itemsize + int(tensor.storage_offset()))


def moved_in(tensor: torch.Tensor, storage: torch.UntypedStorage, first: int) -> None:
    """Let `tensor` begin at the element `first` of another storage; shape and strides stay.

    It remains the same object, and so do its views' ties to it.
    """
    with torch.no_grad():
        there = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        there.set_(storage, first, tensor.size(), tensor.stride())
        tensor.data = there


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return all of a storage as uint8 `[nbytes]`."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _wrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of which a wrapper subclass consists; none for any other."""
    flatten: Any = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return []
    names, _ = flatten()
    return [getattr(tensor, name) for name in names]


def _children(value: object) -> Iterable[object]:
    if isinstance(value, _NOT_STATE) or callable(value):
        return ()
    if isinstance(value, Mapping):
        return (*value.keys(), *value.values())
    found: list[object] = list(value) if isinstance(value, list | tuple | set | deque) else []
    if isinstance(value, frozenset):
        found = list(value)
    found.extend(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        found.extend(getattr(value, name, None) for name in names if isinstance(name, str))
    return found


def _shared(tensors: list[torch.Tensor]) -> Shared:
    storage = tensors[0].untyped_storage()
    # A base that only its views keep alive is one more tensor in the storage.
    bases = {
        id(base): base
        for tensor in tensors
        if (base := tensor._base) is not None  # noqa: SLF001 - torch names no other way
        and _storage_id(base) == storage._cdata  # noqa: SLF001 - the storage's identity
    }
    own = {id(tensor) for tensor in tensors}
    return Shared(storage, (*tensors, *(base for key, base in bases.items() if key not in own)))


def _held(shared: Shared) -> str | None:
    """Return why a storage cannot go: who else has it."""
    if any(t.is_conj() or t.is_neg() or t.is_inference() for t in shared.tensors):
        return "of tensors that cannot be rebound"
    # Whether a storage can be resized would tell, but is over once anybody has asked for `numpy()`,
    # as who writes a checkpoint does.
    on_cpu = shared.storage.device.type == "cpu"
    if on_cpu and (shared.storage.is_shared() or shared.storage.data_ptr() % _ALIGNED):
        return "in memory that is not torch's own"
    if users(shared.storage) > len(shared.tensors):
        return "held by somebody else, too"
    return None


def _storage_id(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - two handles have one
    return identity


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize
