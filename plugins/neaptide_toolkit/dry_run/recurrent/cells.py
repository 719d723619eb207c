"""One step of a recurrent layer in time, with the operations of a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    State = tuple[Tensor, ...]
    """The hidden state (rows, hidden) and, of an LSTM, that of the cell."""
    Cell = Callable[[Tensor, State, "CellWeights"], State]

_ATEN = torch.ops.aten


@attrs.frozen
class CellWeights:
    """The parameters of one direction of a layer. Linear maps are (out, in)."""

    of_input: Tensor
    of_hidden: Tensor
    input_bias: Tensor | None = None
    hidden_bias: Tensor | None = None
    projection: Tensor | None = None


def lstm_step(values: Tensor, state: State, weights: CellWeights) -> State:
    """Return the states after a step of an LSTM in a layer; `values` are (rows, width)."""
    of_input = values @ weights.of_input.t()  # autocast casts a view anew in each step
    of_hidden = state[0] @ weights.of_hidden.t()
    hidden, memory = _lstm_gates(of_input, of_hidden, state[1], weights)
    return hidden if weights.projection is None else hidden @ weights.projection.t(), memory


def gru_step(values: Tensor, state: State, weights: CellWeights) -> State:
    """Return the state after a step of a GRU in a layer."""
    of_input = values @ weights.of_input.t()
    return (_gru_gates(of_input, state[0] @ weights.of_hidden.t(), state[0], weights),)


def simple_step(shaped: Callable[[Tensor], Tensor]) -> Cell:
    """Return a step whose sums get their shape by an activation."""

    def step(values: Tensor, state: State, weights: CellWeights) -> State:
        sums = functional.linear(state[0], weights.of_hidden, weights.hidden_bias)
        more = functional.linear(values, weights.of_input, weights.input_bias)
        return (shaped(sums.add_(more)),)

    return step


def lstm_alone(values: Tensor, hx: Sequence[Tensor], *params: Any) -> State:
    """`lstm_cell` of PyTorch: autocast keeps the copies of its weights."""
    weights = CellWeights(*params)
    of_input = functional.linear(values, weights.of_input)
    of_hidden = functional.linear(hx[0], weights.of_hidden)
    return _lstm_gates(of_input, of_hidden, hx[1], weights)


def gru_alone(values: Tensor, hidden: Tensor, *params: Any) -> Tensor:
    """`gru_cell` of PyTorch."""
    weights = CellWeights(*params)
    of_input = functional.linear(values, weights.of_input)
    return _gru_gates(of_input, functional.linear(hidden, weights.of_hidden), hidden, weights)


def _lstm_gates(of_input: Tensor, of_hidden: Tensor, memory: Tensor, weights: CellWeights) -> State:
    biases = weights.input_bias, weights.hidden_bias
    made: State = _ATEN._thnn_fused_lstm_cell(of_input, of_hidden, memory, *biases)  # noqa: SLF001
    return made[0], made[1]


def _gru_gates(of_input: Tensor, of_hidden: Tensor, hidden: Tensor, weights: CellWeights) -> Tensor:
    biases = weights.input_bias, weights.hidden_bias
    made: State = _ATEN._thnn_fused_gru_cell(of_input, of_hidden, hidden, *biases)  # noqa: SLF001
    return made[0]
