"""The memory of a layer of an LSTM on a CPU, as oneDNN computes it.

PyTorch's rule for shapes knows nothing of what is kept for the backward, nor of the memory inside
the kernels. oneDNN begins each buffer on a page.
"""

from __future__ import annotations

from typing import Any

import torch

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_HIDDEN, _CELL = 5, 6
"""The places of the states among the arguments of `LAYER`."""
_RESULTS, _GRADIENTS = slice(7, 10), slice(10, 13)
"""The places of what `LAYER` returned, and of its gradients, among those of `_BACKWARD`."""
_PAGE, _LINE = 4096, 64
_SINGLE = 4
"""Bytes of a number in single precision."""


def layer(_: Any, values: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[Any, str]:
    """Return what `LAYER` makes of `values` of the shape (length, rows, width), on meta."""
    del kwargs
    hidden, cell = args[_HIDDEN - 1], args[_CELL - 1]
    size = hidden.shape[-1]
    length, rows, width = values.shape
    workspace = _workspace(length, rows, width, size, values.dtype.itemsize)
    made = (
        torch.empty((length, rows, size), dtype=values.dtype, device="meta"),
        torch.empty(hidden.shape, dtype=hidden.dtype, device="meta"),
        torch.empty(cell.shape, dtype=cell.dtype, device="meta"),
        torch.empty(workspace, dtype=torch.uint8, device="meta"),
    )
    return made, ""


def _workspace(length: int, rows: int, width: int, hidden: int, itemsize: int) -> int:
    """Return the bytes that are kept for the backward.

    They hold the gates and, for one step more than there are, two of each state and of each
    gradient of one. Some are in single precision always.
    """
    wide, steps = max(width, hidden), 2 * rows * (length + 1)
    states = (_padded(wide, itemsize) * itemsize, *[_padded(wide, _SINGLE) * _SINGLE] * 2)
    cells = hidden * itemsize, hidden * _SINGLE
    each = rows * length * itemsize
    whole = each * _padded(4 * hidden, itemsize), each * _padded(hidden, itemsize)
    return sum(map(_pages, [*(steps * one for one in (*states, *cells)), *whole]))


def _forward(args: tuple[Any, ...], _: Any) -> int:
    length, rows, width, hidden, itemsize = _sizes(args)
    bias = 4 * hidden * itemsize
    if itemsize == _SINGLE:
        packed = (width + hidden) * _padded(4 * hidden, _SINGLE) * _SINGLE
        return bias + packed + _gates(length, rows, hidden)
    return bias + _packed_half(width, hidden) + 18432 + 144 * hidden


def _backward(args: tuple[Any, ...], _: Any) -> int:
    length, rows, width, hidden, itemsize = _sizes(args)
    bias = 4 * hidden * itemsize
    packed = (width + hidden) * _padded(4 * hidden, _SINGLE) * _SINGLE
    if itemsize == _SINGLE:
        sizes = ((one, _padded(one, _SINGLE)) for one in (width, hidden))
        moved = sum(4 * hidden * whole * _SINGLE for one, whole in sizes if whole != one)
        return bias + packed + moved + _gates(length, rows, hidden) + _copied(args)
    given = rows * hidden * (length + 2) * _SINGLE
    inside = 18832 + 356 * hidden
    given += _copied(args)
    return bias + packed + given + _packed_half(width, hidden) + 4 * hidden * _SINGLE + inside


def _sizes(args: tuple[Any, ...]) -> tuple[int, int, int, int, int]:
    length, rows, width = args[0].shape
    return length, rows, width, args[_HIDDEN].shape[-1], args[0].dtype.itemsize


def _copied(args: tuple[Any, ...]) -> int:
    """Return the bytes of gradients that are copied, because they have gaps, or made, of zeros."""
    pairs = zip(args[_RESULTS], args[_GRADIENTS], strict=True)
    return sum(made.nbytes for made, given in pairs if given is None or not given.is_contiguous())


def _gates(length: int, rows: int, hidden: int) -> int:
    return 12856 + _pages(length * rows * _padded(4 * hidden, _SINGLE) * _SINGLE)


def _packed_half(width: int, hidden: int) -> int:
    """Return the bytes of both weights in 16 bits, each gate's columns padded."""
    return (width + hidden) * 4 * _lines(hidden, 2) * 2


def _padded(width: int, itemsize: int) -> int:
    whole = _lines(width, itemsize)
    return whole if whole % 256 else whole + _LINE // itemsize


def _lines(width: int, itemsize: int) -> int:
    """Return a width in whole lines of the cache."""
    numbers = _LINE // itemsize
    return -(-width // numbers) * numbers


def _pages(nbytes: int) -> int:
    return -(-nbytes // _PAGE) * _PAGE


TEMPORARY = {LAYER: _forward, _BACKWARD: _backward}
"""The bytes inside, by operation."""
