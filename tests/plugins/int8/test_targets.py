"""Which weights are quantized."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from neaptide_plugins.builtin_models.byte_gpt import build
from neaptide_plugins.builtin_models.config import ByteGptOptions
from neaptide_plugins.int8.scheme import Scheme
from neaptide_plugins.int8.targets import find
from neaptide_toolkit.testing.tiny import TinyNet

pytestmark = pytest.mark.usefixtures("on_device")

CHANNEL = Scheme("channel", 64, True)


def names(
    model: nn.Module, *, include: tuple[str, ...] | None = None, exclude: tuple[str, ...] = ()
) -> list[str]:
    return [target.name for target in find(model, include, exclude, CHANNEL)]


def test_embeddings_norms_and_heads_are_left_alone() -> None:
    model = nn.ModuleDict(
        {
            "embed": nn.Embedding(10, 8),
            "body": nn.Sequential(nn.Linear(8, 8), nn.LayerNorm((8, 8)), nn.Conv1d(3, 4, 2)),
            "rnn": nn.LSTM(8, 8),
            "lm_head": nn.Linear(8, 10),
            "attention": nn.MultiheadAttention(8, 2),
            "last": nn.Linear(8, 2),
        }
    )
    expected = [
        "body.0.weight",
        "body.2.weight",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
    ]
    assert expected == names(model)


def test_of_a_gpt_every_matrix_of_its_blocks_is_quantized() -> None:
    found = names(build(ByteGptOptions(layers=2, width=16, heads=2, context=8)))
    assert found
    assert all(name.startswith("blocks.") for name in found)


def test_what_is_tied_to_an_embedding_is_left_alone_and_a_shared_layer_is_found_once() -> None:
    model = nn.ModuleList([nn.Embedding(8, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
    model[1].weight = model[0].weight
    assert ["2.weight"] == names(model)
    shared = [target for target in find(TinyNet(), None, (), CHANNEL) if "shared" in target.name]
    assert 1 == len(shared)
    tied = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)])
    tied[1].weight = tied[0].weight
    (target,) = find(tied, None, (), CHANNEL)
    assert [(tied[0], "weight"), (tied[1], "weight")] == list(target.sites)


def test_patterns_choose_and_take_away() -> None:
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Embedding(8, 8), "c": nn.Linear(8, 8)})
    assert ["b.weight", "c.weight"] == names(model, include=("b", "c"))
    assert ["c.weight"] == names(model, include=("*",), exclude=("a", "b"))
    with pytest.raises(ValueError, match=r"no module with a matrix matches 'd'.*'a', 'b', 'c'"):
        names(model, include=("d",))
    with pytest.raises(ValueError, match="no weight is left to quantize"):
        names(model, exclude=("*",))


def test_double_and_parametrized_weights_are_left_alone() -> None:
    normed = parametrizations.weight_norm(nn.Linear(8, 8))
    model = nn.ModuleList([normed, nn.Linear(8, 8).double(), nn.Linear(8, 8), nn.Linear(8, 8)])
    assert ["2.weight"] == names(model)


def test_what_would_not_get_smaller_is_left_alone_unless_it_is_asked_for() -> None:
    model = nn.ModuleList([nn.Linear(1, 8), nn.Linear(2, 8), nn.Linear(8, 8)])
    assert ["1.weight"] == names(model)
    assert [] != names(model, include=("0",))
    with pytest.raises(ValueError, match="would not get smaller"):
        names(nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8)]).bfloat16())


def test_channels_are_those_of_the_output() -> None:
    model = nn.ModuleList([nn.Linear(8, 4), nn.ConvTranspose2d(3, 5, 2), nn.Linear(8, 8)])
    assert [0, 1] == [target.channel for target in find(model, None, (), CHANNEL)]


def test_a_block_must_divide_every_channel() -> None:
    model = nn.ModuleList([nn.Linear(64, 8), nn.Linear(12, 8), nn.Linear(8, 8)])
    with pytest.raises(ValueError, match=r"'1.weight': its channels of 12 elements .* block of 8"):
        find(model, None, (), Scheme("block", 8, True))
    assert 1 == len(find(model, None, ("1",), Scheme("block", 8, True)))


def test_a_model_without_matrices_says_so() -> None:
    with pytest.raises(ValueError, match="no weight is left to quantize of 0 matrices"):
        find(nn.LayerNorm(4), None, (), CHANNEL)


def test_lazy_weights_are_left_until_they_have_a_shape() -> None:
    model = nn.ModuleList([nn.LazyLinear(4), nn.Linear(8, 8), nn.Linear(4, 4)])
    assert ["1.weight"] == names(model)
    model[0](torch.ones(2, 8))
    assert ["0.weight", "1.weight"] == names(model)
