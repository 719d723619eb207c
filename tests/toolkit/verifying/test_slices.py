"""A model that is too large is verified with fewer blocks of the same kinds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import planted_faults as planted
import pytest
import torch
import verified
from support import DEVICE, some
from torch import nn
from verified import CONFIG

from neaptide import ConfigError, ModelError
from neaptide_toolkit.verifying import fewer_blocks, slicing, verify

SIX: dict[str, Any] = {**CONFIG, "model": {"name": "verified:six_blocks"}}
STREAMED: dict[str, Any] = {**SIX, "plugins": {"layer-streaming": {}}}


def test_a_slice_is_right_and_says_that_it_is_one() -> None:
    verified.BUILT.clear()
    found = verify(STREAMED, steps=2, blocks=3, memory=False)
    assert found.right, str(found)
    assert found.sliced is not None
    assert (("blocks.0", "blocks.1", "blocks.2"), 6) == (found.sliced.kept, found.sliced.blocks)
    assert "a slice of the model: 3 of 6 blocks (blocks.0, blocks.1, blocks.2)" in str(found)
    assert "right: nothing differs in the slice" in str(found)
    without_values = [[one.up.weight.is_meta for one in blocks] for blocks in verified.BUILT]
    assert [True] * 6 == without_values[0]  # built to be counted
    assert [[False] * 3 + [True] * 3] * found.runs == without_values[1:]


@pytest.mark.slow
def test_a_fault_in_a_slice_is_named() -> None:
    found = verify({**SIX, "plugins": {}}, steps=2, blocks=3, plugins=[planted.rounds()])
    assert [("training", ("rounds",))] == [(one.check, one.plugins) for one in found.findings]


@pytest.mark.parametrize(("room", "kept"), some([(29_000, 4), (15_000, 2)], of=2))
def test_a_model_that_does_not_fit_is_sliced(
    monkeypatch: pytest.MonkeyPatch, room: int, kept: int
) -> None:
    times = slicing.COPIES + (DEVICE.type == "cpu")
    memory = SimpleNamespace(room=times * room)
    monkeypatch.setattr(slicing, "facts", SimpleNamespace(memory=lambda: memory))
    found = verify({**SIX, "plugins": {"ema": {}}}, steps=2, memory=False)
    assert found.right, str(found)
    assert found.sliced is not None
    assert kept == len(found.sliced.kept)
    assert "all need" in str(found)


def test_a_slice_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SimpleNamespace(room=1000)
    monkeypatch.setattr(slicing, "facts", SimpleNamespace(memory=lambda: memory))
    with pytest.raises(ModelError, match="the smallest slice, 2 blocks, need"):
        verify({**SIX, "plugins": {}}, steps=2)


@pytest.mark.parametrize(
    ("model", "blocks", "problem"),
    [
        ("six_blocks", 1, "at least 2 blocks"),
        ("all_needed", 3, r"with 3 of 6 blocks; if its forward needs all"),
        ("no_blocks", 2, "Linear has no repeated blocks"),
    ],
)
def test_what_cannot_be_sliced_is_told_in_one_line(model: str, blocks: int, problem: str) -> None:
    with pytest.raises((ConfigError, ModelError), match=problem) as refused:
        verify({**CONFIG, "model": {"name": f"verified:{model}"}}, steps=2, blocks=blocks)
    assert 1 == len(str(refused.value).splitlines())


class Mixed(nn.Module):
    """Two kinds of blocks in a pattern, counted and listed by attributes."""

    def __init__(self) -> None:
        super().__init__()
        kinds = "aabaab"
        self.num_layers = len(kinds)
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=kind == "b") for kind in kinds)
        self.layer_scales = [float(place) for place in range(len(kinds))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for place in range(self.num_layers):
            x = self.layers[place](x) * self.layer_scales[place]
        return x


@pytest.mark.parametrize(("count", "kept"), [(3, (0, 1, 2)), (4, (0, 1, 2, 3)), (6, (*range(6),))])
def test_each_kind_and_a_pair_remain(count: int, kept: tuple[int, ...]) -> None:
    model = Mixed()
    assert tuple(f"layers.{place}" for place in kept) == fewer_blocks(model, count)
    assert (count, [*map(float, kept)]) == (model.num_layers, model.layer_scales)
    model(torch.ones(2, 4))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            "Gemma3TextConfig",
            {"num_hidden_layers": 8, "sliding_window_pattern": 4},
            marks=pytest.mark.slow,
        ),
        ("T5Config", {"num_layers": 6, "d_model": 16, "d_kv": 4, "d_ff": 16, "num_heads": 4}),
    ],
)
def test_models_of_transformers_take_fewer_blocks(name: str, options: dict[str, Any]) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "head_dim": 4, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "vocab_size": 32, "decoder_start_token_id": 0}
    config = getattr(transformers, name)(**{**(sizes if "Gemma" in name else {}), **options})
    if name == "T5Config":
        config.vocab_size, config.decoder_start_token_id = 32, 0
        model = transformers.T5ForConditionalGeneration(config)
    else:
        model = transformers.Gemma3ForCausalLM(config)
    before = len(list(model.parameters()))
    kept = fewer_blocks(model)
    assert len(list(model.parameters())) < before, kept
    ids = torch.randint(0, 32, (2, 7))
    model(input_ids=ids, labels=ids).loss.backward()
    assert all(one.grad is not None for one in model.parameters())
    assert config.num_hidden_layers in (6, 8)  # the caller's own is not changed
