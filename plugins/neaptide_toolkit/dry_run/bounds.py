"""The largest shapes of operations whose shapes depend on values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .as_cuda.attention import FUSED, FUSED_BACKWARD, attended, gradients
from .undispatched.lstm import LAYER, layer

if TYPE_CHECKING:
    from collections.abc import Callable

    Count = Callable[[torch.Tensor], int]
    """Returns how many elements of a tensor are not 0, or how many can be."""

_ATEN = torch.ops.aten
_INDEXING = {_ATEN.index.Tensor, _ATEN._unsafe_index.Tensor}  # noqa: SLF001 - PyTorch's own name
_PUTTING = {_ATEN.index_put.default, _ATEN._unsafe_index_put.default}  # noqa: SLF001 - as above
_MASKS = (torch.bool, torch.uint8)


def without_masks(operation: Any, args: tuple[Any, ...], count: Count) -> tuple[Any, ...]:
    """Replace the masks among the indices of an operation by places, as many as `count` returns."""
    if not has_mask(operation, args):
        return args
    found: list[Any] = []
    for one in args[1]:
        if one is not None and one.dtype in _MASKS:
            places = torch.empty(count(one), dtype=torch.int64, device="meta")
            found += [places] * max(one.ndim, 1)
        else:
            found.append(one)
    if operation in _PUTTING:  # its values may be fewer than all that the mask can choose
        return (args[0], found, args[2].new_empty((), device="meta"), *args[3:])
    return (args[0], found, *args[2:])


def has_mask(operation: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a mask is among the indices of an operation."""
    return operation in _INDEXING | _PUTTING and any(
        one is not None and one.dtype in _MASKS for one in args[1]
    )


def bound_of(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], count: Count
) -> tuple[Any, str] | None:
    """Return what an operation makes at most, on the meta device, and what that assumes.

    None if the shape does not depend on values, or if nothing is known about it.
    """
    bound = _BOUNDS.get(operation)
    return None if bound is None else bound(count, *args, **kwargs)


def _empty(size: tuple[int, ...], dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(size, dtype=dtype, device="meta")


def _nonzero(count: Count, values: torch.Tensor) -> Any:
    return _empty((count(values), values.ndim)), ""


def _masked_select(count: Count, values: torch.Tensor, mask: torch.Tensor) -> Any:
    whole = (_empty(tuple(values.shape)) + _empty(tuple(mask.shape))).numel()
    return _empty((count(mask) * whole // max(mask.numel(), 1),), values.dtype), ""


def _unique(values: torch.Tensor, *, inverse: bool, counts: bool) -> Any:
    size = values.numel()
    places = _empty(tuple(values.shape) if inverse else (0,))
    made = _empty((size,), values.dtype), places, _empty((size if counts else 0,))
    return made, f"all {size} values are different"


def _unique2(_: Count, values: torch.Tensor, *flags: Any, **named: Any) -> Any:
    inverse, counts = _flags(("sorted", "return_inverse", "return_counts"), flags, named)[1:]
    return _unique(values, inverse=inverse or counts, counts=counts)


def _consecutive(_: Count, values: torch.Tensor, *flags: Any, **named: Any) -> Any:
    names = ("return_inverse", "return_counts", "dim")
    inverse, counts, dim = _flags(names, flags, named)
    if dim is not None and dim is not False:
        return _along(values, dim, counts=counts)
    return _unique(values, inverse=inverse, counts=counts)


def _unique_dim(_: Count, values: torch.Tensor, dim: int, *flags: Any, **named: Any) -> Any:
    names = ("sorted", "return_inverse", "return_counts")
    return _along(values, dim, counts=_flags(names, flags, named)[2])


def _flags(names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """Return the arguments with these names; False for each that was not given."""
    more = [named.get(name, False) for name in names[len(given) :]]
    return [*given, *more]


def _along(values: torch.Tensor, dim: int, *, counts: bool) -> Any:
    size = values.shape[dim]
    made = _empty(tuple(values.shape), values.dtype), _empty((size,))
    return (*made, _empty((size if counts else 0,))), f"all {size} slices are different"


def _bincount(
    _: Count, values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> Any:
    del values
    if not minlength:
        return None
    dtype = torch.int64 if weights is None else torch.float64
    if weights is not None and weights.dtype is torch.float32:
        dtype = torch.float32
    return _empty((minlength,), dtype), f"bincount has no value above {minlength - 1}"


def _grouped(
    _: Count,
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    del bias
    rows, columns = first.shape[-2], second.shape[-1]
    groups: tuple[int, ...] = ()
    if first.ndim == second.ndim:  # else the rows or the columns of all groups are together
        batched = first.ndim > len((rows, columns))
        groups = first.shape[:1] if batched or offs is None else offs.shape[:1]
    return _empty((*groups, rows, columns), out_dtype or first.dtype), ""


_BOUNDS: dict[Any, Callable[..., tuple[Any, str] | None]] = {
    _ATEN.nonzero.default: _nonzero,
    _ATEN.masked_select.default: _masked_select,
    _ATEN._unique2.default: _unique2,  # noqa: SLF001 - the operation of `Tensor.unique`
    _ATEN.unique_consecutive.default: _consecutive,
    _ATEN.unique_dim.default: _unique_dim,
    _ATEN.bincount.default: _bincount,
    _ATEN._grouped_mm.default: _grouped,  # noqa: SLF001 - PyTorch has no other name
    LAYER: layer,
    FUSED: attended,
    FUSED_BACKWARD: gradients,
}
