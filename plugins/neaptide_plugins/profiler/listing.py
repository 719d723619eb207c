"""Lists the tensors that Python holds, by device, shape, dtype and category."""

from __future__ import annotations

import contextlib
import gc
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import attrs
import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch import nn

Storage = tuple[str, int]
"""Device and address of a storage. All views of one tensor have the same device and address."""


@attrs.define
class AlikeStorages:
    """The count and bytes of all storages with the same device, dtype, shape and category."""

    device: str
    dtype: str
    shape: list[int]
    category: str
    """`parameter`, `buffer`, `gradient`, `optimizer_state` or `other`."""
    count: int = 0
    bytes: int = 0


@attrs.frozen
class Listing:
    """The result of `live_tensors`."""

    entries: list[AlikeStorages]
    """Sorted by bytes, the largest first."""
    left_out: dict[str, int]
    """Number of tensors without visible memory, by kind: fake, meta, sparse or wrapper tensors."""


@attrs.frozen
class _Seen:
    """A tensor and its storage."""

    storage: Storage
    bytes: int
    dtype: str
    shape: list[int]
    rank: tuple[bool, int]
    """Sort key among the tensors of one storage; the tensor with the largest key is listed.

    Tensors that are larger than the storage (expanded or overlapping) have the smallest keys.
    """


def live_tensors(
    model: nn.Module | None = None, optimizer: torch.optim.Optimizer | None = None
) -> Listing:
    """Return the tensors that are visible to Python.

    Two kinds of memory are not visible: tensors that autograd saves in C++, and memory that
    libraries allocate outside of torch. A storage is counted once, with the shape of its largest
    tensor.
    """
    with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - as its documentation shows; subclasses must not override the calls
        left_out: dict[int, str] = {}
        largest = _largest_of_each_storage(left_out)
        entries = _listed(_categories(model, optimizer), largest)
        return Listing(entries, dict(Counter(sorted(left_out.values()))))


def _largest_of_each_storage(left_out: dict[int, str]) -> Iterable[_Seen]:
    largest: dict[Storage, _Seen] = {}
    for tensor in _visible():
        try:
            seen = _seen(tensor)
        except Exception:  # noqa: BLE001 - a tensor subclass may raise anything
            left_out[id(tensor)] = _kind(tensor)
            continue
        if seen is None:
            continue
        known = largest.get(seen.storage)
        if known is None or seen.rank > known.rank:
            largest[seen.storage] = seen
    return largest.values()


def _seen(tensor: torch.Tensor) -> _Seen | None:
    """Return a tensor's storage and size. Return None for an empty tensor.

    Raises an error if the tensor has no memory.
    """
    place = _place(tensor)
    if place is None:
        return None
    # Nested tensors have no shape.
    shape = [tensor.numel()] if tensor.is_nested else list(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    nbytes = tensor.untyped_storage().nbytes()
    return _Seen(place, nbytes, dtype, shape, (tensor.nbytes <= nbytes, tensor.numel()))


def _place(tensor: torch.Tensor) -> Storage | None:
    """Return a tensor's storage. Return None for an empty tensor.

    Raises RuntimeError if the tensor has no memory.

    A fake tensor may state the CPU as its device, but the device of its storage is meta. Reading
    the address of a storage on meta raises an error or a warning.
    """
    storage = tensor.untyped_storage()
    if storage.device.type != "meta":
        if not storage.nbytes():
            return None
        address = storage.data_ptr()
        if address:
            return str(tensor.device), address
    msg = "the tensor has no visible memory"
    raise RuntimeError(msg)


def _kind(tensor: torch.Tensor) -> str:
    """Return the kind of a tensor without visible memory.

    The kind is the name of a subclass or of a layout, or `meta` or `wrapper`.
    """
    if type(tensor) not in {torch.Tensor, torch.nn.Parameter}:
        return type(tensor).__name__
    if tensor.is_meta:
        return "meta"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "wrapper"


def _listed(categories: dict[Storage, str], largest: Iterable[_Seen]) -> list[AlikeStorages]:
    entries: dict[tuple[Any, ...], AlikeStorages] = {}
    for seen in largest:
        device, category = seen.storage[0], categories.get(seen.storage, "other")
        key = (device, seen.dtype, tuple(seen.shape), category)
        entry = entries.setdefault(key, AlikeStorages(device, seen.dtype, seen.shape, category))
        entry.count += 1
        entry.bytes += seen.bytes
    return sorted(entries.values(), key=lambda entry: entry.bytes, reverse=True)


def totals(entries: Iterable[AlikeStorages]) -> dict[str, dict[str, int]]:
    """Return the bytes of `entries` by device and category."""
    by: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for entry in entries:
        by[entry.device][entry.category] += entry.bytes
    return {device: dict(categories) for device, categories in by.items()}


def _visible() -> Iterator[torch.Tensor]:
    for held in gc.get_objects():
        # Check the type only: reading attributes of an unknown object may run arbitrary code.
        if not issubclass(type(held), torch.Tensor):
            continue
        yield held
        gradient = _gradient(held)
        if gradient is not None:
            yield gradient


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    with contextlib.suppress(Exception):  # a tensor subclass may raise anything
        return tensor.grad if tensor.is_leaf else None
    return None


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
    """Return a tensor's storage. Return None if the tensor is empty or has no visible memory."""
    with contextlib.suppress(Exception):  # as above
        return _place(tensor)
    return None
