"""The fused cells of LSTM and GRU: CUDA has kernels of its own for them, the CPU has none."""

from __future__ import annotations

import torch

Tensor = torch.Tensor
_LIBRARY = torch.library.Library("aten", "IMPL", "CUDA")


def install() -> None:
    """Register the cells, and turn cuDNN off: `nn.LSTM` would warn that the build lacks it."""
    torch.backends.cudnn.enabled = False
    for function in (lstm_cell, lstm_cell_backward_impl, gru_cell, gru_cell_backward):
        _LIBRARY.impl(f"_thnn_fused_{function.__name__}", function)


def lstm_cell(
    inputs: Tensor,
    hidden: Tensor,
    cx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return hidden state, cell state `[N, H]`, and the gates `[N, 4 * H]` for the backward."""
    i, f, g, o = (_biased(inputs, input_bias) + _biased(hidden, hidden_bias)).chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


def lstm_cell_backward_impl(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    gates: Tensor,
    has_bias: bool,  # noqa: FBT001 - torch's signature
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the gates, of the cell state, and of either bias."""
    i, f, g, o = gates.chunk(4, 1)
    grad_hy = torch.zeros_like(cy) if grad_hy is None else grad_hy
    through = cy.tanh()
    grad = grad_hy * o * (1 - through * through)
    grad = grad if grad_cy is None else grad + grad_cy
    found = [
        grad * g * i * (1 - i),
        grad * cx * f * (1 - f),
        grad * i * (1 - g * g),
        grad_hy * through * o * (1 - o),
    ]
    whole = torch.cat(found, 1)
    return whole, grad * f, whole.sum(0) if has_bias else None


def gru_cell(
    inputs: Tensor,
    hidden: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the hidden state `[N, H]`, and what the backward needs `[N, 5 * H]`."""
    reset, update, new = _biased(inputs, input_bias).chunk(3, 1)
    reset_too, update_too, new_too = _biased(hidden, hidden_bias).chunk(3, 1)
    reset, update = (reset + reset_too).sigmoid(), (update + update_too).sigmoid()
    new = (new + reset * new_too).tanh()
    return new + update * (hx - new), torch.cat([reset, update, new, hx, new_too], 1)


def gru_cell_backward(
    grad: Tensor,
    kept: Tensor,
    has_bias: bool,  # noqa: FBT001 - torch's signature
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return the gradients of both inputs' gates, of the hidden state, and of both biases."""
    reset, update, new, hx, new_too = kept.chunk(5, 1)
    to_update = grad * (hx - new) * update * (1 - update)
    to_new = grad * (1 - update) * (1 - new * new)
    to_reset = to_new * new_too * reset * (1 - reset)
    inputs = torch.cat([to_reset, to_update, to_new], 1)
    hidden = torch.cat([to_reset, to_update, to_new * reset], 1)
    biases = (inputs.sum(0), hidden.sum(0)) if has_bias else (None, None)
    return inputs, hidden, grad * update, *biases


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias
