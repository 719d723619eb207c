"""Recurrent layers do the operations of a GPU within a context, and compute the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.utils import rnn

from neaptide_toolkit.dry_run.as_cuda.autocasting import as_cuda_casts
from neaptide_toolkit.dry_run.recurrent.on_gpu import recurrent_as_cuda
from neaptide_toolkit.dry_run.unknown import Unknown

if TYPE_CHECKING:
    from collections.abc import Callable

# PyTorch says it once in a process, whichever test asks first.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported:UserWarning")

LENGTH, ROWS, WIDTH, HIDDEN = 5, 3, 4, 6


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Lists operations, and computes them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def sequences() -> torch.Tensor:
    return torch.randn(LENGTH, ROWS, WIDTH)


def packed() -> Any:
    return rnn.pack_padded_sequence(sequences(), torch.tensor([5, 3, 2]))


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "RNN": lambda: nn.RNN(WIDTH, HIDDEN, 2),
    "RNN, relu": lambda: nn.RNN(WIDTH, HIDDEN, 2, nonlinearity="relu"),
    "GRU": lambda: nn.GRU(WIDTH, HIDDEN, 2),
    "GRU, no bias": lambda: nn.GRU(WIDTH, HIDDEN, 2, bias=False),
    "GRU, both directions": lambda: nn.GRU(WIDTH, HIDDEN, 2, bidirectional=True),
    "LSTM": lambda: nn.LSTM(WIDTH, HIDDEN, 2),
    "LSTM, no bias": lambda: nn.LSTM(WIDTH, HIDDEN, bias=False),
    "LSTM, both directions": lambda: nn.LSTM(WIDTH, HIDDEN, 2, bidirectional=True),
    "LSTM, projected": lambda: nn.LSTM(WIDTH, HIDDEN, 2, proj_size=3),
}


def values(layer: nn.Module, given: Any) -> list[torch.Tensor]:
    """Return all results, and the gradients of all parameters."""
    layer.zero_grad()
    made = [
        one
        for one in torch.utils._pytree.tree_leaves(layer(given))
        if isinstance(one, torch.Tensor) and one.is_floating_point()
    ]
    if isinstance(given, rnn.PackedSequence):
        made.append(layer(given)[0].data)
    sum((one.cos().sum() for one in made), torch.zeros(())).backward()
    return [*made, *(one.grad for one in layer.parameters() if one.grad is not None)]


def both(layer: nn.Module, given: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """Return what is computed outside and inside of the context, and the operations inside."""
    outside = values(layer, given)
    with recurrent_as_cuda(lambda _: None), Seen() as seen:
        inside = values(layer, given)
    return outside, inside, seen.names


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize("make", [sequences, packed])
@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_what_pytorch_computes(name: str, make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    outside, inside, names = both(LAYERS[name](), make())
    assert len(outside) == len(inside)
    for one, other in zip(outside, inside, strict=True):
        torch.testing.assert_close(one, other)
    assert not any("mkldnn" in one for one in names)
    kind = name[:4].rstrip(",").lower()
    assert kind == "rnn" or any(f"_thnn_fused_{kind}_cell_backward" in one for one in names)


@pytest.mark.parametrize("name", ["lstm", "gru"])
@pytest.mark.parametrize("biases", [True, False])
def test_cells_compute_what_pytorch_computes(name: str, *, biases: bool) -> None:
    torch.manual_seed(0)
    cell = {"lstm": nn.LSTMCell, "gru": nn.GRUCell}[name](WIDTH, HIDDEN, bias=biases)
    outside, inside, names = both(cell, torch.randn(ROWS, WIDTH))
    for one, other in zip(outside, inside, strict=True):
        torch.testing.assert_close(one, other)
    assert f"aten::_thnn_fused_{name}_cell" in names


def test_batches_may_come_first() -> None:
    torch.manual_seed(0)
    layer, given = nn.LSTM(WIDTH, HIDDEN, batch_first=True), torch.randn(ROWS, LENGTH, WIDTH)
    outside, inside, _ = both(layer, given)
    for one, other in zip(outside, inside, strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_is_between_layers_in_training_only() -> None:
    layer = nn.GRU(WIDTH, HIDDEN, 3, dropout=0.5)
    for training, count in ((True, 2), (False, 0)):
        layer.train(training)
        with recurrent_as_cuda(lambda _: None), Seen() as seen:
            layer(sequences())
        assert sum("bernoulli" in one or "dropout" in one for one in seen.names) == count


def test_without_a_mode_layers_stay_what_they_are() -> None:
    layer, given, notes = nn.LSTM(WIDTH, HIDDEN), sequences(), list[str]()
    outside = layer(given)[0]
    with recurrent_as_cuda(notes.append):
        assert torch.equal(layer(given)[0], outside)
    assert not notes


def test_the_context_ends() -> None:
    with recurrent_as_cuda(lambda _: None):
        pass
    with Seen() as seen:
        nn.LSTM(WIDTH, HIDDEN)(sequences())
    assert "aten::mkldnn_rnn_layer" in seen.names
    gates, state = torch.empty(ROWS, 4 * HIDDEN, device="meta"), torch.empty(ROWS, HIDDEN)
    made = torch.ops.aten._thnn_fused_lstm_cell(gates, gates, state.to("meta"), gates[0], gates[0])
    assert made[2].shape == gates.shape  # PyTorch's own rule is back


@pytest.mark.parametrize("name", LAYERS)
def test_unknown_values_have_the_same_shapes(name: str) -> None:
    layer, given = LAYERS[name](), sequences()
    outside = values(layer, given)
    mode, notes = Unknown(lambda *_: None), list[str]()
    with recurrent_as_cuda(notes.append), mode:
        mode.forget([given, *layer.parameters()])
        inside = values(layer, given)
    assert [one.shape for one in inside] == [one.shape for one in outside]
    assert len(set(notes)) == 1
    assert "cuDNN" in notes[0]


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_autocast_casts_a_weight_in_each_step_but_a_bias_once(name: str) -> None:
    layer = LAYERS[name]()
    rules = recurrent_as_cuda(lambda _: None), as_cuda_casts()
    with rules[0], rules[1], torch.autocast("cpu", torch.bfloat16), Seen() as seen:
        made, _ = layer(sequences())
        copies = seen.names.count("aten::_to_copy")
    assert made.dtype is torch.bfloat16
    weights, biases, states = 2 * 2 * LENGTH, 2 * 2, 4 if name == "LSTM" else 2 * 2
    assert copies == weights + biases + states + LENGTH
