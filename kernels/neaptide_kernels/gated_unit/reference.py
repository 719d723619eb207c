"""Gated units in plain torch: the reference for the kernels.

torch's activations compute 16-bit numbers in float32 and round once; so does the product. These are
the operations of eager modules and of autograd, so the bits are the same. But an eager module keeps
the activation for the backward; here the backward computes it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

_aten = torch.ops.aten

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}
"""The activations by name; `silu` makes a SwiGLU, and `gelu` a GeGLU."""

_SLOPES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": _aten.silu_backward,
    "gelu": _aten.gelu_backward,
    "gelu_tanh": partial(_aten.gelu_backward, approximate="tanh"),
    "relu": lambda gradient, gate: _aten.threshold_backward(gradient, gate, 0),
}


def gated_unit(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Return `activation(gate) * up`, contiguous.

    Args:
        gate: floating, of any shape.
        up: of the shape and dtype of `gate`.
        activation: one of `ACTIVATIONS`.
    """
    return ACTIVATIONS[activation](gate).mul_(up).contiguous()


def gated_unit_backward(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of `gate` and `up`, contiguous."""
    of_up = ACTIVATIONS[activation](gate).mul_(gradient)
    of_gate = _SLOPES[activation](gradient * up, gate)
    return of_gate.contiguous(), of_up.contiguous()
