"""The storages in which tensors lie, and whether nothing else lies there."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from neaptide.api.spans import Evictable, SharedStorage

SMALLEST = 1024
"""Bytes; a smaller tensor of an optimizer's state stays: moving it costs more than it frees."""

_SHARED = "used by other tensors, too"
_ALIGNED = 64
"""Bytes to which torch aligns what it allocates on a CPU."""
_HANDLE = 1
"""What `users` is asked with uses the storage, too."""
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)
_NOT_STATE = (nn.Module, torch.optim.Optimizer)


def evictable(
    tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = (), smallest: int = 0
) -> Evictable:
    """Return the storages that `tensors` share with nobody, at least `smallest` bytes each.

    A tensor of another layout than strided stays, and so does memory that any other tensor uses, or
    one of `others`.
    """
    foreign = {_identity(tensor) for tensor in others if _has_storage(tensor)}
    members: dict[int, dict[int, torch.Tensor]] = {}
    left: Counter[str] = Counter()
    for tensor in tensors:
        if not _has_storage(tensor):
            left["of another layout than strided"] += tensor.numel() * tensor.dtype.itemsize
        else:
            members.setdefault(_identity(tensor), {})[id(tensor)] = tensor
    storages = []
    for identity, group in members.items():
        shared = _shared(list(group.values()))
        if shared.bytes < max(1, smallest):
            continue
        reason = _SHARED if identity in foreign else _held(shared)
        if reason is None:
            storages.append(shared)
        else:
            left[reason] += shared.bytes
    return Evictable(storages, dict(left))


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
        if not isinstance(value, torch.Tensor):
            queue.extend(_children(value))
        elif inner := _wrapped(value):
            queue.extend(inner)
        else:
            yield value


def users(storage: torch.UntypedStorage) -> int:
    """Return how many tensors use `storage`, in all of the process; saved for backward included."""
    count: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no other way to ask
    return count - _HANDLE


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
    sequence = isinstance(value, list | tuple | set | frozenset | deque)
    found: list[object] = list(value) if sequence else []  # type: ignore[call-overload]  # just asked
    found.extend(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        found.extend(getattr(value, name, None) for name in names if isinstance(name, str))
    return found


def _shared(tensors: list[torch.Tensor]) -> SharedStorage:
    # A base that only its views keep alive is one more tensor in the storage.
    bases = {
        id(base): base
        for tensor in tensors
        if (base := tensor._base) is not None  # noqa: SLF001 - torch names no other way
        and _identity(base) == _identity(tensor)
    }
    own = {id(tensor) for tensor in tensors}
    more = (base for key, base in bases.items() if key not in own)
    return SharedStorage(tensors[0].untyped_storage(), (*tensors, *more))


def _held(shared: SharedStorage) -> str | None:
    """Return why a storage cannot go."""
    if any(t.is_conj() or t.is_neg() or t.is_inference() for t in shared.tensors):
        return "of tensors that cannot be rebound"
    # Asking whether a storage can be resized would not do: `numpy()`, which writing a checkpoint
    # calls, makes it fixed for good.
    on_cpu = shared.storage.device.type == "cpu"
    if on_cpu and (shared.storage.is_shared() or shared.storage.data_ptr() % _ALIGNED):
        return "in memory that is not torch's own"
    if users(shared.storage) > len(shared.tensors):
        return _SHARED
    return None


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta


def _identity(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - two handles have one
    return identity
