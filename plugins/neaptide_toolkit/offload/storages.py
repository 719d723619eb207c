"""Finds storages of tensors, and checks whether any other tensor uses these storages."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import torch
from torch import nn

from neaptide.api.spans import Evictable, SharedStorage

SMALLEST = 1024
"""Size in bytes. Smaller optimizer state is not evicted, because this frees too little memory."""

_SHARED = "used by other tensors, too"
_ALIGNED = 64
"""Alignment of torch's allocations on a CPU, in bytes."""
_HANDLE = 1
"""The number that `users` subtracts, because its own argument also counts as a user."""
_ATOMS = (str, bytes, int, float, complex, bool, type(None), type, ModuleType)
_NOT_STATE = (nn.Module, torch.optim.Optimizer)


def evictable(
    tensors: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = (), smallest: int = 0
) -> Evictable:
    """Return the storages of at least `smallest` bytes that only `tensors` use.

    If any other tensor, such as one of `others`, uses a storage, the storage is not included.
    A tensor whose layout is not strided is not included either.
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
    """Yield each tensor in `tree` once.

    The search covers mappings, sequences, sets, attributes and wrapper tensors.
    Modules and optimizers in the tree are skipped.
    """
    seen: dict[int, object] = {}  # keeps the objects alive, so that no id is reused
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
    """Return how many tensors use `storage`, including tensors that are saved for backward."""
    count: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001 - torch has no public function
    return count - _HANDLE


def moved_in(tensor: torch.Tensor, storage: torch.UntypedStorage, first: int) -> None:
    """Rebind `tensor`: from now on its data is in `storage`, from element `first` on."""
    with torch.no_grad():
        there = torch.empty(0, dtype=tensor.dtype, device=storage.device)
        there.set_(storage, first, tensor.size(), tensor.stride())
        tensor.data = there


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return a uint8 tensor `[nbytes]` that uses the whole storage."""
    with torch.no_grad():
        return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the elements fill one range of memory without gaps or overlaps."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size > 1:
            if stride != step:
                return False
            step *= size
    return True


def _wrapped(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the inner tensors of a wrapper subclass; an empty list for any other tensor."""
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
    found: list[object] = list(value) if sequence else []  # type: ignore[call-overload]  # `sequence` is true
    found.extend(getattr(value, "__dict__", {}).values())
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names = (slots,) if isinstance(slots, str) else tuple(slots)
        found.extend(getattr(value, name, None) for name in names if isinstance(name, str))
    return found


def _shared(tensors: list[torch.Tensor]) -> SharedStorage:
    # The base of a view also uses the storage, even if only the view keeps the base alive.
    bases = {
        id(base): base
        for tensor in tensors
        if (base := tensor._base) is not None  # noqa: SLF001 - as above
        and _identity(base) == _identity(tensor)
    }
    own = {id(tensor) for tensor in tensors}
    more = (base for key, base in bases.items() if key not in own)
    return SharedStorage(tensors[0].untyped_storage(), (*tensors, *more))


def _held(shared: SharedStorage) -> str | None:
    """Return the reason why a storage cannot be evicted, or None if it can be evicted."""
    if any(t.is_conj() or t.is_neg() or t.is_inference() for t in shared.tensors):
        return "of tensors that cannot be rebound"
    # `resizable()` cannot be used here: it stays False after `numpy()`, which `save` calls.
    on_cpu = shared.storage.device.type == "cpu"
    if on_cpu and (shared.storage.is_shared() or shared.storage.data_ptr() % _ALIGNED):
        return "in memory that is not torch's own"
    if users(shared.storage) > len(shared.tensors):
        return _SHARED
    return None


def _has_storage(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and not tensor.is_nested and not tensor.is_meta


def _identity(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata  # noqa: SLF001 - equal for all Python objects of a storage
    return identity
