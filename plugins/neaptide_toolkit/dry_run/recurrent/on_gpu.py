"""Recurrent layers, computed as PyTorch computes them on a GPU without cuDNN.

On a CPU, an LSTM is one operation of oneDNN, and other layers compute the gates of all inputs at
once. On a GPU, every step in time has its own products and one fused cell. Both keep other tensors
for the backward. What is here does the operations of `ATen/native/RNN.cpp`, in their order.

cuDNN, which PyTorch prefers on a GPU of NVIDIA, keeps a reserve instead. Only cuDNN knows its size,
so a plan says that its memory is not that of cuDNN.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

from neaptide_toolkit.dry_run.as_cuda.overriding import overridden

from .cells import gru_alone, gru_step, lstm_alone, lstm_step, simple_step
from .fused import FUSED
from .layers import layers_of, packed_layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_ATEN = torch.ops.aten
_NOTE = (
    "recurrent layers take what PyTorch's own kernels take on a GPU; what cuDNN takes, if it "
    "computes them, is not known"
)
_CELLS = {
    "lstm": lstm_step,
    "gru": gru_step,
    "rnn_tanh": simple_step(torch.tanh),
    "rnn_relu": simple_step(torch.relu),
}
_OPERATIONS: dict[Any, Callable[..., Any]] = {
    **{getattr(_ATEN, name).input: layers_of(cell) for name, cell in _CELLS.items()},
    **{getattr(_ATEN, name).data: packed_layers_of(cell) for name, cell in _CELLS.items()},
    _ATEN.lstm_cell.default: lstm_alone,
    _ATEN.gru_cell.default: gru_alone,
}


@contextmanager
def recurrent_as_cuda(note: Callable[[str], None]) -> Iterator[None]:
    """Within this context, recurrent layers on the CPU do the operations of a GPU.

    Outside of all dispatch modes, they stay what they are.

    Args:
        note: called with what this assumes, each time that such a layer runs.
    """
    # PyTorch tells no shapes of a GRU, or of an LSTM without biases.
    cells = {getattr(_ATEN, f"_thnn_fused_{one.__name__}").default: one for one in FUSED}
    layers = {operation: _chosen(operation, own, note) for operation, own in _OPERATIONS.items()}
    with (
        overridden(cells, "CPU"),
        overridden(cells, "Meta"),
        overridden(layers, "AutogradCPU"),
    ):
        yield


def _chosen(
    operation: Any, own: Callable[..., Any], note: Callable[[str], None]
) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        if _get_current_dispatch_mode() is None:
            return operation.decompose(*args)
        note(_NOTE)
        return own(*args)

    return run
