"""Stacks of recurrent layers over sequences, as `ATen/native/RNN.cpp` runs them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch

from .cells import CellWeights

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from .cells import Cell, State

    Layer = Callable[
        [Tensor, Sequence[State], Sequence[CellWeights], Cell], tuple[Tensor, list[State]]
    ]


def layers_of(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """Return `lstm`, `gru` or `rnn_...` of sequences with one length."""

    def run(values: Tensor, *args: Any) -> tuple[Tensor, ...]:
        *others, batch_first = args
        values = values.transpose(0, 1) if batch_first else values
        made, *ends = _stacked(_full, cell, values, *others)
        return (made.transpose(0, 1) if batch_first else made, *ends)

    return run


def packed_layers_of(cell: Cell) -> Callable[..., tuple[Tensor, ...]]:
    """Return `lstm`, `gru` or `rnn_...` of packed sequences."""

    def run(values: Tensor, sizes: Tensor, *args: Any) -> tuple[Tensor, ...]:
        return _stacked(_packed(sizes.tolist()), cell, values, *args)

    return run


def _stacked(
    layer: Layer,
    cell: Cell,
    values: Tensor,
    hx: Tensor | list[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,  # noqa: FBT001 - PyTorch's signature, here and below
    layers: int,
    dropout: float,
    train: bool,  # noqa: FBT001
    bidirectional: bool,  # noqa: FBT001
) -> tuple[Tensor, ...]:
    """Return the output of the last layer, and the last states of all layers."""
    whole = [hx] if isinstance(hx, torch.Tensor) else hx
    states: list[State] = [*zip(*(one.unbind(0) for one in whole), strict=True)]
    projected = len({one.shape[-1] for one in whole}) > 1
    weights = _gathered(params, 2 + 2 * has_biases + projected, has_biases=has_biases)
    ends: list[State] = []
    for number in range(layers):
        own = slice(number * (1 + bidirectional), (number + 1) * (1 + bidirectional))
        values, last = layer(values, states[own], weights[own], cell)
        ends += last
        if dropout and train and number < layers - 1:
            values = torch.dropout(values, dropout, train=True)
    return (values, *(torch.stack(one) for one in zip(*ends, strict=True)))


def _gathered(params: Sequence[Tensor], each: int, *, has_biases: bool) -> list[CellWeights]:
    found = []
    for place in range(0, len(params), each):
        of_input, of_hidden, *others = params[place : place + each]
        biases = _cast(*others[:2]) if has_biases else [None, None]
        found.append(CellWeights(of_input, of_hidden, *biases, *others[2 * has_biases :]))
    return found


def _cast(*biases: Tensor) -> list[Tensor]:
    """Cast once what autocast on CUDA casts for the fused cells, and keeps."""
    if not torch.is_autocast_enabled("cpu"):
        return [*biases]
    return [one.to(torch.get_autocast_dtype("cpu")) for one in biases]


def _full(
    values: Tensor, states: Sequence[State], weights: Sequence[CellWeights], cell: Cell
) -> tuple[Tensor, list[State]]:
    """Return what a layer makes of `values` (length, rows, width), and its last states."""
    steps = [*values.unbind(0)]
    made, end = _through(steps, states[0], weights[0], cell)
    output = torch.stack(made)
    if len(states) == 1:
        return output, [end]
    back, start = _through(steps[::-1], states[1], weights[1], cell)
    return torch.cat([output, torch.stack(back[::-1])], -1), [end, start]


def _through(
    steps: list[Tensor], state: State, weights: CellWeights, cell: Cell
) -> tuple[list[Tensor], State]:
    made = []
    for step in steps:
        state = cell(step, state, weights)
        made.append(state[0])
    return made, state


def _packed(sizes: list[int]) -> Layer:
    """Return a layer of sequences in order of length; `sizes` counts those of each step in time."""
    starts = [0, *accumulate(sizes)]

    def layer(
        values: Tensor, states: Sequence[State], weights: Sequence[CellWeights], cell: Cell
    ) -> tuple[Tensor, list[State]]:
        output, end = forwards(values, states[0], weights[0], cell)
        if len(states) == 1:
            return output, [end]
        back, start = backwards(values, states[1], weights[1], cell)
        return torch.cat([output, back], -1), [end, start]

    def forwards(
        values: Tensor, state: State, weights: CellWeights, cell: Cell
    ) -> tuple[Tensor, State]:
        made, ended = [], []
        for start, size in zip(starts, sizes, strict=False):
            if size < len(state[0]):
                ended.append(tuple(one[size:] for one in state))
                state = tuple(one[:size] for one in state)
            state = cell(values.narrow(0, start, size), state, weights)
            made.append(state[0])
        last = [state, *ended[::-1]]
        return torch.cat(made), tuple(torch.cat(one) for one in zip(*last, strict=True))

    def backwards(
        values: Tensor, whole: State, weights: CellWeights, cell: Cell
    ) -> tuple[Tensor, State]:
        made = []
        state = tuple(one[: sizes[-1]] for one in whole)
        for start, size in [*zip(starts, sizes, strict=False)][::-1]:
            if size > len(state[0]):
                more = [one[len(state[0]) : size] for one in whole]
                state = tuple(torch.cat(pair) for pair in zip(state, more, strict=True))
            state = cell(values.narrow(0, start, size), state, weights)
            made.append(state[0])
        return torch.cat(made[::-1]), state

    return layer
