"""What operations take while they run, beyond what they are given and return."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from . import convolutions, lstm, products

if TYPE_CHECKING:
    from collections.abc import Callable

    Inside = Callable[[tuple[Any, ...], Any], int]

_ATEN = torch.ops.aten


def _compared(args: tuple[Any, ...], _: Any) -> int:
    """Return the bytes of a difference and its bounds, and of three masks beside the result."""
    first, second = args[:2]
    size: int = max(first.numel(), second.numel())
    itemsize: int = max(first.dtype.itemsize, second.dtype.itemsize)
    return size * (3 * itemsize + 3)


def _normalized(args: tuple[Any, ...], _: Any) -> int:
    """Return the bytes of a copy of what is normalized, unless it is contiguous."""
    return 0 if args[0].is_contiguous() else int(args[0].nbytes)


def _normalized_backward(args: tuple[Any, ...], _: Any) -> int:
    return _normalized(args, _) + _normalized(args[1:], _)


_ANYWHERE: dict[Any, Inside] = {
    _ATEN.isclose.default: _compared,
    _ATEN.allclose.default: lambda args, _: _compared(args, _) + max(args[0].numel(), 1),
    _ATEN.native_layer_norm.default: _normalized,
    _ATEN.native_layer_norm_backward.default: _normalized_backward,
}
_ON_CPU: dict[Any, Inside] = {
    **_ANYWHERE,
    **convolutions.TEMPORARY,
    **lstm.TEMPORARY,
    **products.TEMPORARY,
}


def temporary(operation: Any, args: tuple[Any, ...], made: Any) -> int:
    """Return the bytes that an operation on a CPU takes inside; 0 if nothing is known of it.

    `made` is what it returns.
    """
    return _of(_ON_CPU, operation, args, made)


def temporary_anywhere(operation: Any, args: tuple[Any, ...], made: Any) -> int:
    """Return the bytes that an operation takes inside on every device."""
    return _of(_ANYWHERE, operation, args, made)


def _of(known: dict[Any, Inside], operation: Any, args: tuple[Any, ...], made: Any) -> int:
    found = known.get(operation)
    return 0 if found is None else max(0, found(args, made))
