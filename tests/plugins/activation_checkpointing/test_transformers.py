"""Tiny transformers models from their configs, with dropout, caches and labels."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import transformers
from checkpointed import attached, differing, trace
from support import DEVICE
from torch import nn

VOCABULARY = 64


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=4, n_head=2, n_positions=32
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
    )
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=2,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def loss_of(model: nn.Module, step: int, *, use_cache: bool, autocast: bool) -> torch.Tensor:
    tokens = torch.randint(0, VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(step))
    tokens = tokens.to(DEVICE)
    mask = torch.ones_like(tokens)
    mask[0, 9:] = 0
    with torch.autocast(DEVICE.type, torch.bfloat16, enabled=autocast):
        loss: torch.Tensor = model(
            input_ids=tokens, attention_mask=mask, labels=tokens, use_cache=use_cache
        ).loss
    return loss


SETTINGS: dict[str, dict[str, Any]] = {
    "each block": {"interval": 1},
    "pairs": {"interval": 2},
    "all blocks": {"interval": 8},
    "half, products kept": {"interval": 1, "ratio": 0.5, "save_ops": ("matmul", "attention")},
}


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("use_cache", [False, True])
@pytest.mark.parametrize("make", [gpt2, llama, t5])
def test_training_is_bitwise_the_same(make: Any, *, use_cache: bool, autocast: bool) -> None:
    step = partial(loss_of, use_cache=use_cache, autocast=autocast)
    expected = trace(make, step, steps=2)
    found = {
        name: differing(expected, trace(make, step, segments=partial(attached, **chosen), steps=2))
        for name, chosen in SETTINGS.items()
    }
    assert {name: [] for name in SETTINGS} == found


@pytest.mark.parametrize(("use_cache", "expected"), [(False, 0), (True, 4)])
def test_a_cache_is_noted_once_for_each_block(*, use_cache: bool, expected: int) -> None:
    model = llama()
    segments = attached(model, "model.layers.*")
    for step in range(2):
        loss_of(model, step, use_cache=use_cache, autocast=False).backward()
    assert expected == len(segments.notes)
    assert all("use_cache=False" in note for note in segments.notes)
