"""Families of transformers with replaced layers: the same loss, and nearly the same gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from support import DEVICE

from neaptide_plugins.fused_layers.config import KINDS
from neaptide_plugins.fused_layers.replacing import Replacements

pytestmark = pytest.mark.usefixtures("on_device")

_SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_SIZES, "num_key_value_heads": 2}
_T5 = {
    "vocab_size": 96,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "is_gated_act": True,
    "dense_act_fn": "gelu",
}
_GPT2 = {"vocab_size": 96, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
_ROPE = "apply_rotary_pos_emb"

FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, int], dict[str, int]]] = {
    "Llama": ("CausalLM", _GROUPED, {"MLP": 2, "RMSNorm": 5, _ROPE: 1}, {}),
    "Qwen2": ("CausalLM", _GROUPED, {"MLP": 2, "RMSNorm": 5, _ROPE: 1}, {}),
    "Qwen3": ("CausalLM", {**_GROUPED, "head_dim": 8}, {"MLP": 2, "RMSNorm": 9, _ROPE: 1}, {}),
    "Mistral": ("CausalLM", _GROUPED, {"MLP": 2, "RMSNorm": 5, _ROPE: 1}, {}),
    "Gemma": ("CausalLM", {**_GROUPED, "head_dim": 8}, {"MLP": 2, "RMSNorm": 5, _ROPE: 1}, {}),
    "Gemma2": ("CausalLM", {**_GROUPED, "head_dim": 8}, {"MLP": 2, "RMSNorm": 9, _ROPE: 1}, {}),
    "Olmo2": ("CausalLM", _GROUPED, {"MLP": 2, "RMSNorm": 9, _ROPE: 1}, {}),
    "Phi3": (
        "CausalLM",
        {**_GROUPED, "partial_rotary_factor": 0.5},
        {"MLP": 2, "RMSNorm": 5, _ROPE: 1},
        {},
    ),
    "Phi": ("CausalLM", _SIZES, {"LayerNorm": 3, _ROPE: 1}, {}),
    "GPTNeoX": ("CausalLM", _SIZES, {"LayerNorm": 5, _ROPE: 1}, {}),
    "Mixtral": (
        "CausalLM",
        {**_GROUPED, "num_local_experts": 2},
        {"RMSNorm": 5, _ROPE: 1},
        {"Experts": 2},
    ),
    # Its norm keeps a mean, and its RoPE turns neighbours.
    "Cohere": ("CausalLM", _GROUPED, {"MLP": 2}, {"LayerNorm": 3, _ROPE: 1}),
    "GPT2": ("LMHeadModel", _GPT2, {"LayerNorm": 5}, {}),
    "Bert": ("MaskedLM", _SIZES, {"LayerNorm": 6}, {}),
    "T5": ("ConditionalGeneration", _T5, {"LayerNorm": 12, "DenseGatedActDense": 4}, {}),
}
"""The head, the configuration, the layers that are replaced, and those that are not."""


def made(family: str, dtype: torch.dtype) -> torch.nn.Module:
    head, options, *_ = FAMILIES[family]
    name = f"{family}LMHeadModel" if head == "LMHeadModel" else f"{family}For{head}"
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**options)
    model: torch.nn.Module = getattr(transformers, name)(config)
    return model.to(device=DEVICE, dtype=dtype).eval()


def differentiated(model: torch.nn.Module) -> tuple[float, list[torch.Tensor]]:
    words = torch.randint(3, 96, (2, 12), generator=torch.Generator().manual_seed(1), device="cpu")
    words = words.to(DEVICE)
    model.zero_grad()
    loss = model(input_ids=words, labels=words).loss
    loss.backward()
    return loss.item(), [p.grad.clone() for p in model.parameters() if p.grad is not None]


def short(names: dict[str, int], family: str) -> dict[str, int]:
    return {name.removeprefix(family).rpartition(".")[2]: count for name, count in names.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_losses_have_the_same_bits(family: str, dtype: torch.dtype) -> None:
    model = made(family, dtype)
    expected = differentiated(model)
    replacements = Replacements(KINDS, 1)
    replacements.attach(model)
    got = differentiated(model)
    replacements.detach()
    after = differentiated(model)

    *_, replaced, left = FAMILIES[family]
    assert replaced == short(replacements.replaced, family)
    assert left == short(replacements.left, family)
    assert expected[0] == got[0] == after[0]
    # Autograd adds the parts of an input's gradient in another order, or rounds them one by one.
    rounded = family == "T5" or ("LayerNorm" in replaced and DEVICE.type != "cpu")
    allowed = 2e-6 if dtype is torch.float32 else (0.03 if rounded else 0.0)
    for right, result, again in zip(expected[1], got[1], after[1], strict=True):
        assert torch.equal(right, again)
        assert (right - result).float().norm() <= allowed * right.float().norm() + 1e-9


@pytest.mark.parametrize("family", ["Llama", "Gemma", "T5", "Bert"])
def test_under_autocast_losses_have_the_same_bits(family: str) -> None:
    model = made(family, torch.float32)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        expected = differentiated(model)
        replacements = Replacements(KINDS, 1)
        replacements.attach(model)
        got = differentiated(model)
        replacements.detach()
    assert expected[0] == got[0]
    for right, result in zip(expected[1], got[1], strict=True):
        assert (right - result).norm() <= 0.03 * right.norm()
