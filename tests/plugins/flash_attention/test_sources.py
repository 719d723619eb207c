"""Models of transformers whose code the plugin's name or its ranges of keys would change."""

from __future__ import annotations

import ast
import copy
import importlib
import pickle
import types
from typing import Any

import pytest
import torch
import transformers
from support import DEVICE
from torch import nn

from neaptide import HybridTrainer
from neaptide_plugins.flash_attention.interface import Interfaces
from neaptide_plugins.flash_attention.masks import dense, mask_of
from neaptide_plugins.flash_attention.sources import (
    _asks,
    _findings,
    _later,
    _uses_mask,
    why_not,
)
from neaptide_plugins.flash_attention.tally import Tally

WORDS, LENGTH = 64, 12
_ASKS = "its code asks for the name of the attention"
_SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GPT2: dict[str, Any] = {
    **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
    **dict.fromkeys(("n_embd", "n_positions"), 32),
    "vocab_size": WORDS,
    "n_layer": 2,
    "n_head": 4,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_INDEXED: dict[str, Any] = {
    **dict.fromkeys(("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 8),
    **dict.fromkeys(("q_lora_rank", "index_head_dim", "moe_intermediate_size"), 16),
    **dict.fromkeys(("num_key_value_heads", "index_topk", "n_routed_experts"), 4),
    **dict.fromkeys(("index_n_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
}
LEFT: dict[str, tuple[str, str, dict[str, Any], str]] = {
    "falcon": ("FalconConfig", "FalconForCausalLM", _SMALL, _ASKS),
    "deepseek_v32": ("DeepseekV32Config", "DeepseekV32ForCausalLM", {**_SMALL, **_INDEXED}, _ASKS),
    "doge": (
        "DogeConfig",
        "DogeForCausalLM",
        {**_SMALL, "keep_window_size": 4},
        "its code computes with the mask",
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**_GPT2, "reorder_and_upcast_attn": True}, _ASKS),
}


def model_of(config: str, kind: str, options: dict[str, Any], implementation: str) -> Any:
    torch.manual_seed(1)
    made = getattr(transformers, config)(**options, attn_implementation=implementation)
    return getattr(transformers, kind)(made).to(DEVICE)


def llama(**options: Any) -> Any:
    return model_of("LlamaConfig", "LlamaForCausalLM", {**_SMALL, **options}, "sdpa")


def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator("cpu").manual_seed(2)
    words = torch.randint(3, WORDS, (2, LENGTH), generator=generator, device="cpu").to(DEVICE)
    seen = torch.ones_like(words)
    seen[1, 8:] = 0
    return {
        "input_ids": words,
        "attention_mask": seen,
        "labels": words.masked_fill(seen == 0, -100),
    }


def losses(model: nn.Module, plugins: dict[str, Any]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with HybridTrainer(model, optimizer, config={"plugins": plugins}) as trainer:
        return [trainer.step(batch()).loss for _ in range(2)]


@pytest.mark.parametrize("name", LEFT)
def test_models_that_the_plugin_would_change_are_left_and_named(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    *made, reason = LEFT[name]
    implementation = "eager" if name == "gpt2" else "sdpa"
    expected = losses(model_of(*made, implementation), {})
    caplog.clear()
    with caplog.at_level("INFO", "neaptide"):
        found = losses(model_of(*made, implementation), {"flash-attention": {}})
    assert expected == pytest.approx(found, rel=1e-5)
    (line,) = [one for one in caplog.messages if "flash_attention.models_left" in one]
    assert reason in line


@pytest.mark.parametrize(
    ("module", "asks", "computes"),
    [
        ("siglip2", False, True),
        ("minimax_m3_vl", True, True),
        ("gemma4", True, False),
        ("llama", False, False),
        ("bert", False, False),
        ("git", False, False),
        ("kosmos2_5", True, False),  # `getattr(ALL_ATTENTION_FUNCTIONS, ...)` finds none
    ],
)
def test_the_source_of_a_model_tells_what_it_asks(
    module: str, *, asks: bool, computes: bool
) -> None:
    name = f"transformers.models.{module}.modeling_{module}"
    importlib.import_module(name)
    found = _findings(name)
    assert found is not None
    assert (asks, computes) == found[:2]


def test_a_model_without_a_source_is_left() -> None:
    unknown = types.new_class("Unknown", (nn.Module,), {})
    unknown.__module__ = "made_at_run_time"
    model = llama()
    model.added = unknown()
    assert "the source of made_at_run_time cannot be read" == why_not(model, model.config)


OLDER = """
class Attention:
    def __init__(self, config):
        self.flash = config._attn_implementation == "flash_attention_2"

    def forward(self, attention_mask):
        interface = eager
        if self.config._attn_implementation != "eager":
            interface = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        return interface(self, attention_mask)
"""


def test_code_that_only_looks_the_function_up_asks_nothing() -> None:
    def asks(text: str) -> bool:
        return any(map(_asks, _later(ast.parse(text))))

    assert not asks(OLDER)
    assert asks(OLDER.replace('!= "eager"', '!= "sdpa"'))
    assert asks(OLDER.replace("interface = eager", "a = getattr(c, '_attn_implementation')"))
    used = ast.parse("def f(x):\n    m = create_causal_mask(x)\n    return m[:, 0]").body[0]
    assert isinstance(used, ast.FunctionDef)
    assert _uses_mask(used)


def test_a_mask_that_is_learned_is_left_to_torch_and_gets_its_gradient() -> None:
    class Learned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = llama()
            self.mask = nn.Parameter(torch.linspace(-1, 1, LENGTH * LENGTH, device=DEVICE))

        def forward(self, input_ids: torch.Tensor, **_: Any) -> Any:
            mask = self.mask.view(1, 1, LENGTH, LENGTH)
            return self.model(input_ids=input_ids, labels=input_ids, attention_mask=mask)

    results = []
    for plugins in ({}, {"flash-attention": {}}):
        model = Learned()
        results.append((losses(model, plugins), model.mask.detach().clone()))
    (expected, mask), (found, trained) = results
    assert expected == pytest.approx(found, rel=1e-5)
    torch.testing.assert_close(trained, mask)
    assert not torch.equal(mask, Learned().mask)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_copies_that_were_made_during_a_run_work_after_it(family: str) -> None:
    model = llama()
    if family == "gemma2":
        options = {**_SMALL, "head_dim": 8, "sliding_window": 4, "attn_logit_softcapping": 2.0}
        model = model_of("Gemma2Config", "Gemma2ForCausalLM", options, "eager")
    interfaces = Interfaces(Tally())
    assert not interfaces.replace(model)
    copied, stored = copy.deepcopy(model), pickle.dumps(model)
    fresh = type(model)(copy.deepcopy(model.config)).to(DEVICE)
    interfaces.restore()
    fresh.load_state_dict(model.state_dict())
    expected = model(**batch()).loss
    for one in (copied, pickle.loads(stored), fresh):
        torch.testing.assert_close(one(**batch()).loss, expected)
    tally = Tally()
    again = Interfaces(tally)
    assert not again.replace(copied)
    torch.testing.assert_close(copied(**batch()).loss, expected)
    again.restore()
    assert 2 == tally.replaced


def test_a_mask_of_integers_is_never_taken_for_ranges() -> None:
    model = llama()
    for length in (2, LENGTH):
        mask = torch.ones(1, 1, length, length, dtype=torch.int32, device=DEVICE).tril()
        words = torch.full((1, length), 5, device=DEVICE)
        with pytest.raises(RuntimeError) as expected:
            model(input_ids=words, attention_mask=mask)
        interfaces = Interfaces(Tally())
        interfaces.replace(model)
        try:
            with pytest.raises(RuntimeError) as found:
                model(input_ids=words, attention_mask=mask)
        finally:
            interfaces.restore()
        assert str(expected.value) == str(found.value)


def test_two_keys_have_a_mask_of_pairs() -> None:
    def causal(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return key <= query

    given = {"batch_size": 1, "mask_function": causal, "allow_is_causal_skip": False}
    few, more = (mask_of(**given, q_length=n, kv_length=n, device=DEVICE) for n in (2, 3))
    assert few is not None
    assert more is not None
    assert torch.bool == few.dtype
    assert torch.equal(torch.ones(3, 3, device=DEVICE).tril().bool(), dense(more, 3)[0, 0])
