"""Lists the tensors Python holds, by device, shape, dtype and what they are for."""

from __future__ import annotations

import gc
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

Storage = tuple[str, int]
"""Device and address of a storage: tensors that are views of each other share one."""


@attrs.define
class Entry:
    """Storages alike, their bytes added up."""

    device: str
    dtype: str
    shape: list[int]
    category: str
    """`parameter`, `buffer`, `gradient`, `optimizer_state` or `other`."""
    count: int = 0
    bytes: int = 0


def live_tensors(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
) -> list[Entry]:
    """Return what the tensors that Python can see hold, the largest first.

    Not among them is what autograd keeps for backward in C++, and what libraries allocate outside
    torch. A storage is counted once, as the largest tensor that lies in it.
    """
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as its documentation shows; no subclass answers for itself
        return _listed(_categories(model, optimizer), _largest_of_each_storage())


def _largest_of_each_storage() -> dict[Storage, torch.Tensor]:
    largest: dict[Storage, torch.Tensor] = {}
    for tensor in _visible():
        storage = _storage(tensor)
        if storage is None:
            continue
        known = largest.get(storage)
        if known is None or _size(tensor) > _size(known):
            largest[storage] = tensor
    return largest


def _size(tensor: torch.Tensor) -> tuple[bool, int]:
    """Return the elements; a view that repeats its storage (expanded, overlapping) is smallest."""
    return tensor.nbytes <= tensor.untyped_storage().nbytes(), tensor.numel()


def _listed(categories: dict[Storage, str], largest: dict[Storage, torch.Tensor]) -> list[Entry]:
    entries: dict[tuple[Any, ...], Entry] = {}
    for storage, tensor in largest.items():
        category = categories.get(storage, "other")
        dtype = str(tensor.dtype).removeprefix("torch.")
        shape = list(tensor.shape)
        key = (storage[0], dtype, tuple(shape), category)
        entry = entries.setdefault(key, Entry(storage[0], dtype, shape, category))
        entry.count += 1
        entry.bytes += tensor.untyped_storage().nbytes()
    return sorted(entries.values(), key=lambda entry: entry.bytes, reverse=True)


def totals(entries: Iterable[Entry]) -> dict[str, dict[str, int]]:
    """Return the bytes of `entries` by device and category."""
    by: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in entries:
        by[entry.device][entry.category] += entry.bytes
    return {device: dict(categories) for device, categories in by.items()}


def _visible() -> Iterator[torch.Tensor]:
    for held in gc.get_objects():
        # By the type alone: asking an unknown object for attributes may run anybody's code.
        if not issubclass(type(held), torch.Tensor):
            continue
        yield held
        if held.is_leaf and held.grad is not None:
            yield held.grad


def _categories(
    model: nn.Module | None, optimizer: torch.optim.Optimizer | None
) -> dict[Storage, str]:
    named: list[tuple[str, Iterable[Any]]] = []
    if optimizer is not None:
        states = (value for state in optimizer.state.values() for value in state.values())
        named.append(("optimizer_state", states))
    if model is not None:
        named += [
            ("buffer", model.buffers()),
            ("gradient", (parameter.grad for parameter in model.parameters())),
            ("parameter", model.parameters()),
        ]
    return {
        storage: category
        for category, tensors in named
        for tensor in tensors
        if isinstance(tensor, torch.Tensor) and (storage := _storage(tensor)) is not None
    }


def _storage(tensor: torch.Tensor) -> Storage | None:
    """Return where a tensor lies; None for those without memory (meta, fake, sparse, wrappers)."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    return (str(tensor.device), address) if address else None
