"""The memory of a layer of an LSTM on a CPU, as oneDNN computes it.

PyTorch's rule for shapes knows nothing of what is kept for the backward, nor of the memory inside
the kernels. The numbers were found by trying: they are those of oneDNN in PyTorch 2.13.
"""

from __future__ import annotations

from typing import Any

import torch

LAYER = torch.ops.aten.mkldnn_rnn_layer.default
_BACKWARD = torch.ops.aten.mkldnn_rnn_layer_backward.default
_HIDDEN, _CELL = 5, 6
"""The places of the states among the arguments of `LAYER`."""


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


def temporary(operation: Any, args: tuple[Any, ...]) -> int:
    """Return the bytes that an operation takes while it runs: 0 unless it is that of an LSTM."""
    if operation not in (LAYER, _BACKWARD):
        return 0
    length, rows, width = args[0].shape
    hidden = args[_HIDDEN].shape[-1]
    gates = 4 * hidden
    taken: int = (width + hidden + length * rows) * _padded(
        gates
    )  # weights in another order, and gates
    if operation is _BACKWARD:
        taken += sum(gates * _padded(one) for one in (width, hidden) if _padded(one) != one)
    itemsize: int = args[0].dtype.itemsize
    return taken * itemsize


def _workspace(length: int, rows: int, width: int, hidden: int, itemsize: int) -> int:
    """Return the bytes that are kept for the backward.

    They hold the gates and, for one step more than there are, six buffers as wide as the wider of
    input and output, and five as wide as the output. Some are in single precision always.
    """
    gates = length * _padded(4 * hidden) * itemsize
    wide = _padded(max(width, hidden)) * (16 + 2 * itemsize)
    narrow = -(-hidden // 16) * 16 * (8 + 3 * itemsize)
    return rows * (gates + (length + 1) * (wide + narrow))


def _padded(width: int) -> int:
    whole = -(-width // 16) * 16
    return whole if whole % 256 else whole + 16
