"""Runs with replaced layers: resident, streamed, checkpointed, compiled, and what is left after."""

from __future__ import annotations

import copy
import io
from operator import methodcaller
from typing import Any

import pytest
import torch
from support import DEVICE
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

from neaptide import ConfigError, HybridTrainer
from neaptide_plugins.fused_layers.config import KINDS
from neaptide_plugins.fused_layers.replacing import Replacements

pytestmark = pytest.mark.usefixtures("on_device")

NAME = "fused-layers"
SMALL = {NAME: {"min_elements": 1}}


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        use_cache=False,
    )
    return LlamaForCausalLM(config).to(DEVICE)


def losses(plugins: dict[str, Any], prepare: Any = lambda model: model) -> list[float]:
    """Return the losses of five steps; every op runs as often as the layers want."""
    model = llama()
    prepare(model)
    trainer = HybridTrainer(
        model, torch.optim.AdamW(model.parameters(), lr=1e-2), config={"plugins": plugins}
    )
    found = []
    with trainer:
        for step in range(5):
            random = torch.Generator().manual_seed(step)
            words = torch.randint(64, (2, 8), generator=random, device="cpu").to(DEVICE)
            found.append(trainer.step({"input_ids": words, "labels": words}).loss)
    assert "forward" not in vars(model.model.norm)
    assert modeling_llama.apply_rotary_pos_emb.__module__ == modeling_llama.__name__
    return found


def test_a_run_uses_the_ops_and_has_the_losses_of_a_run_without_them(calls: dict[str, int]) -> None:
    expected = losses({})
    assert not calls
    got = losses(SMALL)
    assert expected[0] == got[0]
    assert expected == pytest.approx(got, rel=1e-5)
    forwards = {"rms_norm": 5 * 7, "gated_unit": 5 * 3, "rope": 2 * 5 * 6}
    assert forwards | {"rms_norm_backward": 35, "gated_unit_backward": 15} == calls


def test_small_calls_run_the_own_code(calls: dict[str, int]) -> None:
    assert losses({}) == losses({NAME: {}})
    assert not calls


@pytest.mark.parametrize(
    "beside",
    [
        {"layer-streaming": {}},
        {"activation-checkpointing": {}},
        {"layer-streaming": {"mode": "graph", "resident": 1}},
        {"mixed-precision": {}},
        {"ema": {}},
    ],
    ids="+".join,
)
def test_beside_other_plugins_losses_are_those_of_both_alone(
    beside: dict[str, Any], calls: dict[str, int]
) -> None:
    expected = losses(beside)
    got = losses({**beside, **SMALL})
    assert expected[0] == got[0]
    assert expected == pytest.approx(got, rel=1e-3 if "mixed-precision" in beside else 1e-5)
    assert calls["rms_norm"] >= 35


def _blocks(model: Any) -> None:
    for block in model.model.layers:
        block.compile(backend="aot_eager")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler's own
@pytest.mark.parametrize("beside", [{}, {"layer-streaming": {}}], ids=["resident", "streamed"])
@pytest.mark.parametrize(
    "prepare", [_blocks, methodcaller("compile", backend="aot_eager")], ids=["blocks", "whole"]
)
def test_compiled_models_have_the_same_losses(
    prepare: Any, beside: dict[str, Any], calls: dict[str, int]
) -> None:
    torch._dynamo.reset()
    expected = losses({})
    got = losses({**beside, **SMALL}, prepare)
    assert expected == pytest.approx(got, rel=1e-5)
    assert calls["rms_norm"] >= 35


def test_a_copy_and_a_saved_model_are_whole() -> None:
    model = llama()
    words = torch.arange(8, device=DEVICE)[None]
    expected = model(words).logits
    replacements = Replacements(KINDS, 1)
    replacements.attach(model)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.model.norm.weight.fill_(2.0)
    assert torch.equal(expected, model(words).logits)
    assert not torch.equal(expected, copied(words).logits)
    file = io.BytesIO()
    torch.save(model, file)
    replacements.detach()
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(expected, loaded(words).logits)


def test_two_runs_at_a_time_share_the_replaced_function() -> None:
    own = modeling_llama.apply_rotary_pos_emb
    first, second = (Replacements(("rope",), 1) for _ in range(2))
    first.attach(llama())
    second.attach(llama())
    first.detach()
    assert own is not modeling_llama.apply_rotary_pos_emb
    second.detach()
    second.detach()
    assert own is modeling_llama.apply_rotary_pos_emb


class Halved(nn.Module):
    """An RMSNorm that differs by a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) / 2


def test_a_layer_that_only_looks_like_one_is_left_alone() -> None:
    class HalvedNorm(Halved):
        pass

    replacements = Replacements(KINDS, 1)
    replacements.attach(nn.Sequential(HalvedNorm(), nn.RMSNorm(8), nn.LayerNorm((2, 8))))
    assert ({"RMSNorm": 1}, {"HalvedNorm": 1, "LayerNorm": 1}) == (
        replacements.replaced,
        replacements.left,
    )
    replacements.detach()


class Gated(nn.Module):
    """A gated MLP, with a dropout that only training has."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(8, 16, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(16, 8, bias=False)
        self.act_fn, self.chance = nn.SiLU(), 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.act_fn(self.gate_proj(x)) * self.up_proj(x)
        hidden = nn.functional.dropout(hidden, self.chance, self.training)
        return self.down_proj(hidden)


def test_a_layer_that_differs_only_in_training_is_left_alone() -> None:
    model = nn.Sequential(Gated()).eval()
    before = torch.get_rng_state()
    replacements = Replacements(KINDS, 1)
    replacements.attach(model)
    assert ({}, {"Gated": 1}) == (replacements.replaced, replacements.left)
    assert torch.equal(before, torch.get_rng_state())
    without = nn.Sequential(Gated()).eval()
    without[0].chance = 0.0
    replacements.attach(without)
    assert {"Gated": 1} == replacements.replaced
    assert not without[0].training
    replacements.detach()


class Options:
    """The options of a norm, as a model's config has them."""

    def __init__(self, *, halved: bool) -> None:
        self.halved = halved


class OptionalNorm(nn.Module):
    def __init__(self, options: Options) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))
        self.eps, self.options = 1e-6, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        whole = nn.functional.rms_norm(x, (8,), self.weight, self.eps)
        return whole / 2 if self.options.halved else whole


def test_layers_of_a_class_with_other_options_are_told_apart() -> None:
    norms = [OptionalNorm(Options(halved=halved)) for halved in (False, True, False)]
    replacements = Replacements(KINDS, 1)
    replacements.attach(nn.Sequential(*norms))
    assert ({"OptionalNorm": 2}, {"OptionalNorm": 1}) == (replacements.replaced, replacements.left)
    assert "forward" not in vars(norms[1])
    replacements.detach()


def test_a_forward_that_another_replaced_stays() -> None:
    norm = nn.RMSNorm(8)
    own = norm.forward = lambda x: x
    replacements = Replacements(KINDS, 1)
    replacements.attach(norm)
    replacements.detach()
    assert own is norm.forward


def test_probing_draws_no_number_of_the_run() -> None:
    model = llama()
    before = torch.get_rng_state()
    replacements = Replacements(KINDS, 1)
    replacements.attach(model)
    replacements.detach()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("layers", [[], ["rope", "rope"]])
def test_layers_are_named_once(layers: list[str]) -> None:
    with pytest.raises(ConfigError, match="each once"):
        HybridTrainer(llama(), config={"plugins": {NAME: {"layers": layers}}})


def test_the_report_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((3, 4)))
    trainer = HybridTrainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        loss_fn=lambda model, batch: model(batch).square().mean(),
        config={"plugins": SMALL},
    )
    with trainer:
        line = trainer.hooks.plugins[NAME].report()
    assert line == "replaced: nothing; not replaced: 1 LayerNorm"
