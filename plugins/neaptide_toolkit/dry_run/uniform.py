"""What is known of results of unknown values, because these are finite: `isnan` is False.

A tensor whose elements all have the same value, which is known, is uniform.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable

_ATEN = torch.ops.aten
_OF_FINITE = {
    _ATEN.isnan.default: False,
    _ATEN.isinf.default: False,
    _ATEN.isposinf.default: False,
    _ATEN.isneginf.default: False,
    _ATEN.isfinite.default: True,
}
_COMPARING = {
    getattr(getattr(_ATEN, name), overload)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
}
_KEEPING = {
    getattr(getattr(_ATEN, name), overload)
    for name, overloads in {
        "any": ("default", "dim", "dims"),
        "all": ("default", "dim", "dims"),
        "amax": ("default",),
        "amin": ("default",),
        "max": ("default",),
        "min": ("default",),
        "_to_copy": ("default",),
    }.items()
    for overload in overloads
}
"""Operations that make one value of many equal ones, as they make it of one."""
_ADDING = {_ATEN.sum.default, _ATEN.sum.dim_IntList, _ATEN.count_nonzero.default}
"""As above, but only of zeros."""
_FILLED = {
    getattr(_ATEN, name.format(kind)).default: value
    for kind, value in {"zeros": 0, "ones": 1}.items()
    for name in ("{}", "new_{}", "{}_like")
}


def value_of(
    operation: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    given: list[torch.Tensor],
    known: Callable[[torch.Tensor], Any],
    read: Callable[[Any], None],
) -> Any:
    """Return the value of all elements that an operation on unknown tensors makes; None if unknown.

    Args:
        operation: makes one tensor.
        args: of the operation.
        kwargs: of the operation.
        given: all tensors in the arguments.
        known: returns the value of all elements of a tensor; None if they are unknown or differ.
        read: called with 1 if an unknown scalar decides, which then is 1.
    """
    if operation in _FILLED:
        return _FILLED[operation]
    values = [known(one) for one in given]
    if None in values and operation not in _OF_FINITE and operation not in _COMPARING:
        return None
    if not given or any(not one.numel() or one.is_complex() for one in given):
        return None
    if operation in _OF_FINITE and values[0] is None:
        return _OF_FINITE[operation]
    if operation in _COMPARING and None in values:
        if not _decided(given, args):
            return None
        if all(not one.ndim for one in given):
            read(1)
        values = [1 if one is None else one for one in values]
    if None in values:
        return None
    adds = operation in _ADDING and not any(values)
    keeps = operation in _KEEPING or operation in _COMPARING
    if not (adds or keeps or torch.Tag.pointwise in operation.tags):
        return None
    return _of_one(operation, args, kwargs, dict(zip(map(id, given), values, strict=True)))


def _decided(given: list[torch.Tensor], args: tuple[Any, ...]) -> bool:
    """Return whether a comparison has one result for all finite values. A scalar is 1."""
    if all(not one.ndim for one in given):
        return True
    if len(given) == 1:
        return isinstance(args[1], float) and not math.isfinite(args[1])
    first, second = given
    return (
        first.untyped_storage()._cdata == second.untyped_storage()._cdata  # noqa: SLF001 - identity
        and first.storage_offset() == second.storage_offset()
        and (first.shape, first.stride()) == (second.shape, second.stride())
    )


def _of_one(
    operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any], values: dict[int, Any]
) -> Any:
    """Return what the operation makes of tensors with one element each."""

    def single(one: Any) -> Any:
        if isinstance(one, torch.Tensor):
            return torch.full((1,) * one.ndim, values[id(one)], dtype=one.dtype)
        return torch.device("cpu") if isinstance(one, torch.device) else one

    made = operation(*tree_map(single, args), **tree_map(single, kwargs))
    return made.flatten()[0].item() if isinstance(made, torch.Tensor) and made.numel() else None
