"""Finds tensors in nested containers, counts the bytes of their storages, tells their tier."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from neaptide.api.memory import Tier

_NESTS = (dict, list, tuple)


def tensor_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the total size in bytes of the storages of `tensors`; count each storage once.

    Includes the parts of sparse tensors and of wrapper subclasses. A meta or fake tensor counts as
    if it were real.
    """
    return sum(dict(storage for tensor in tensors for storage in _storages(tensor)).values())


def _storages(tensor: torch.Tensor) -> Iterator[tuple[object, int]]:
    """Yield a unique key and the size in bytes of each storage of `tensor`."""
    if is_traceable_wrapper_subclass(tensor):
        for name in tensor.__tensor_flatten__()[0]:
            yield from _storages(getattr(tensor, name))
    elif tensor.layout is torch.sparse_coo:
        yield from _storages(tensor._indices())  # noqa: SLF001 - indices() needs a coalesced tensor
        yield from _storages(tensor._values())  # noqa: SLF001 - as above
    elif tensor.layout in {torch.sparse_csr, torch.sparse_bsr}:
        yield from map(_storage, (tensor.crow_indices(), tensor.col_indices(), tensor.values()))
    elif tensor.layout in {torch.sparse_csc, torch.sparse_bsc}:
        yield from map(_storage, (tensor.ccol_indices(), tensor.row_indices(), tensor.values()))
    else:
        yield _storage(tensor)


def _storage(tensor: torch.Tensor) -> tuple[object, int]:
    try:
        storage = tensor.untyped_storage()
    except NotImplementedError:  # a layout without a storage
        return id(tensor), tensor.numel() * tensor.element_size()
    address: int | None = None
    if storage.device.type != "meta":  # data_ptr() of a fake tensor warns
        with contextlib.suppress(RuntimeError):  # a wrapper that hides its parts
            address = storage.data_ptr()
    if address is None:
        return storage._cdata, storage.nbytes()  # noqa: SLF001 - the storage's identity
    return (storage.device, address), storage.nbytes()


def nested_tensors(tree: object) -> list[torch.Tensor]:
    """Return every tensor in nested dicts, lists and tuples, in order."""
    found: list[torch.Tensor] = []
    _collect((tree,), found)
    return found


def _collect(values: Iterable[Any], found: list[torch.Tensor]) -> None:
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, _NESTS):
            _collect(value.values() if isinstance(value, dict) else value, found)


def laid_out_as(weight: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor`, of the shape of `weight`, with its strides; a sparse one as it is.

    A fused step of torch on a CPU ignores strides, and on CUDA refuses others.
    """
    if tensor.layout != torch.strided or tensor.stride() == weight.stride():
        return tensor
    return torch.empty_like(weight, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def tier_of(device: torch.device, compute: torch.device) -> Tier:
    """Return the tier of a tensor on `device` in a run that computes on `compute`."""
    return "device" if device.type == compute.type else "host"
