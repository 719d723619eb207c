"""Gated units in plain torch, a few rows at a time on a CPU, so that they stay in its caches."""

from __future__ import annotations

from collections.abc import Callable

import torch

from neaptide_kernels.parts import row_parts

_aten = torch.ops.aten

_INTO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda gate, out: _aten.silu.out(gate, out=out),
    "gelu": lambda gate, out: _aten.gelu.out(gate, out=out),
    "gelu_tanh": lambda gate, out: _aten.gelu.out(gate, approximate="tanh", out=out),
    "relu": lambda gate, out: _aten.relu.out(gate, out=out),
}
_SLOPES_INTO: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "silu": lambda of, gate: _aten.silu_backward.grad_input(of, gate, grad_input=of),
    "gelu": lambda of, gate: _aten.gelu_backward.grad_input(of, gate, grad_input=of),
    "gelu_tanh": lambda of, gate: _aten.gelu_backward.grad_input(
        of, gate, approximate="tanh", grad_input=of
    ),
    "relu": lambda of, gate: _aten.threshold_backward.grad_input(of, gate, 0, grad_input=of),
}


def gated_unit(gate: torch.Tensor, up: torch.Tensor, activation: str) -> torch.Tensor:
    """Run `gated_unit` without temporary tensors."""
    y = gate.new_empty(gate.shape)
    if y.numel():
        one, two, written = (_rows(each) for each in (gate, up, y))
        for part in row_parts(one[:, 0], one.shape[1]):
            _INTO[activation](one[part], written[part]).mul_(two[part])
    return y


def gated_unit_backward(
    gradient: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, activation: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `gated_unit_backward` without temporary tensors."""
    of_gate, of_up = gate.new_empty(gate.shape), gate.new_empty(gate.shape)
    if gate.numel():
        given, one, two = (_rows(each) for each in (gradient, gate, up))
        into_gate, into_up = _rows(of_gate), _rows(of_up)
        for part in row_parts(one[:, 0], one.shape[1]):
            _INTO[activation](one[part], into_up[part]).mul_(given[part])
            torch.mul(given[part], two[part], out=into_gate[part])
            _SLOPES_INTO[activation](into_gate[part], one[part])
    return of_gate, of_up


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1] if x.dim() else 1)
