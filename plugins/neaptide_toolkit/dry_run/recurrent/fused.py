"""The fused cells of LSTM and GRU, for which PyTorch has kernels on a GPU only.

Arguments and results are those of PyTorch's `_thnn_fused_...`. Rows of gates are (rows, 4 * hidden)
in an LSTM and (rows, 3 * hidden) in a GRU.
"""

from __future__ import annotations

import torch
from torch import Tensor


def lstm_cell(
    of_input: Tensor,
    of_hidden: Tensor,
    memory: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the hidden state, the state of the cell, and all gates for the backward."""
    sums = _plus(of_input, input_bias) + _plus(of_hidden, hidden_bias)
    take, keep, new, show = sums.chunk(4, 1)
    take, keep, new, show = take.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    memory = keep * memory + take * new
    return show * memory.tanh(), memory, torch.cat([take, keep, new, show], 1)


def lstm_cell_backward_impl(
    grad_hidden: Tensor | None,
    grad_memory: Tensor | None,
    before: Tensor,
    memory: Tensor,
    gates: Tensor,
    has_bias: bool,  # noqa: FBT001 - PyTorch's signature
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the sums of gates, of the state of the cell, and of each bias."""
    take, keep, new, show = gates.chunk(4, 1)
    shown = memory.tanh()
    grad = torch.zeros_like(memory) if grad_memory is None else grad_memory
    to_show = torch.zeros_like(show)
    if grad_hidden is not None:
        grad = grad + grad_hidden * show * (1 - shown.square())
        to_show = grad_hidden * shown * show * (1 - show)
    sums = torch.cat(
        [
            grad * new * take * (1 - take),
            grad * before * keep * (1 - keep),
            grad * take * (1 - new.square()),
            to_show,
        ],
        1,
    )
    return sums, grad * keep, sums.sum(0) if has_bias else None


def gru_cell(
    of_input: Tensor,
    of_hidden: Tensor,
    hidden: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden state, and (rows, 5 * hidden) for the backward."""
    reset, keep, new = _plus(of_input, input_bias).chunk(3, 1)
    more_reset, more_keep, more_new = _plus(of_hidden, hidden_bias).chunk(3, 1)
    reset, keep = (reset + more_reset).sigmoid(), (keep + more_keep).sigmoid()
    new = (new + reset * more_new).tanh()
    return new + keep * (hidden - new), torch.cat([reset, keep, new, hidden, more_new], 1)


def gru_cell_backward(
    grad: Tensor,
    kept: Tensor,
    has_bias: bool,  # noqa: FBT001 - as above
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of both sums of gates, of the hidden state, and of both biases."""
    reset, keep, new, hidden, more_new = kept.chunk(5, 1)
    to_keep = grad * (hidden - new) * keep * (1 - keep)
    to_new = grad * (1 - keep) * (1 - new.square())
    to_reset = to_new * more_new * reset * (1 - reset)
    of_input = torch.cat([to_reset, to_keep, to_new], 1)
    of_hidden = torch.cat([to_reset, to_keep, to_new * reset], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * keep, *biases


def _plus(sums: Tensor, bias: Tensor | None) -> Tensor:
    return sums if bias is None else sums + bias


FUSED = (lstm_cell, lstm_cell_backward_impl, gru_cell, gru_cell_backward)
