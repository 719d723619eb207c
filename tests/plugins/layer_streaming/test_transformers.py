"""Tiny transformers models from their configs, streamed by the plugin: to the bit as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from streamed import different
from torch import nn

from neaptide import HybridTrainer

VOCABULARY = 64
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 1, "head_dim": 8}


def made(name: str, head: str, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{head}")(config)


def t5() -> nn.Module:
    return made(
        "T5",
        "ForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=3,
        num_heads=2,
        decoder_start_token_id=0,
    )


def both_sides(name: str, **options: Any) -> nn.Module:
    sizes = {
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in {"layers": 2, "attention_heads": 2, "ffn_dim": 32}.items()
    }
    return made(
        name,
        "ForConditionalGeneration",
        **{**sizes, "vocab_size": VOCABULARY, "d_model": 16, "decoder_start_token_id": 1},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **options},
    )


def clip() -> nn.Module:
    text = {key: SIZES[key] for key in SIZES if key != "pad_token_id"}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return made(
        "CLIP",
        "Model",
        text_config={**text, "max_position_embeddings": 16, "projection_dim": 8},
        vision_config={**vision, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )


LANGUAGE: dict[str, Any] = {
    "gpt2": lambda: made(
        "GPT2",
        "LMHeadModel",
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": lambda: made("Llama", "ForCausalLM", **GROUPED, attention_dropout=0.1),
    "mistral": lambda: made("Mistral", "ForCausalLM", **GROUPED, sliding_window=4),
    "mixtral": lambda: made(
        "Mixtral",
        "ForCausalLM",
        **GROUPED,
        num_local_experts=4,
    ),
    "qwen2": lambda: made("Qwen2", "ForCausalLM", **{**SIZES, "num_key_value_heads": 1}),
    "qwen3": lambda: made("Qwen3", "ForCausalLM", **GROUPED),
    "gemma2": lambda: made("Gemma2", "ForCausalLM", **GROUPED, sliding_window=4),
    "gemma3": lambda: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(**GROUPED, sliding_window=4)
    ),
    "deepseek": lambda: made(
        "DeepseekV3",
        "ForCausalLM",
        **SIZES,
        num_key_value_heads=2,
        moe_intermediate_size=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
    ),
    "mamba": lambda: made(
        "Mamba",
        "ForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=16,
        state_size=4,
        num_hidden_layers=3,
        pad_token_id=0,
    ),
    "bert": lambda: made("Bert", "ForMaskedLM", **SIZES),
    "t5": t5,
    "bart": lambda: both_sides("Bart", max_position_embeddings=32),
}
VISION: dict[str, Any] = {
    "vit": lambda: made(
        "ViT",
        "ForImageClassification",
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    ),
    "convnext": lambda: made(
        "ConvNext",
        "ForImageClassification",
        hidden_sizes=[8, 16],
        depths=[2, 2],
        num_stages=2,
        patch_size=2,
        drop_path_rate=0.2,
    ),
}


def tokens_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, VOCABULARY, (2, 10), generator=drawn)
    mask = torch.ones_like(tokens)
    mask[0, 8:] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def images_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    images = torch.randn(4, 3, 8, 8, generator=drawn)
    return {"pixel_values": images, "labels": torch.tensor([0, 1, 1, 0])}


def pairs_of(step: int) -> dict[str, Any]:
    tokens = tokens_of(step)
    images = images_of(step)["pixel_values"][:2]
    return {"input_ids": tokens["input_ids"], "pixel_values": images, "return_loss": True}


def speech_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    return {
        "input_features": torch.randn(2, 8, 16, generator=drawn),
        "labels": tokens_of(step)["labels"],
    }


CASES: dict[str, tuple[Any, Any]] = {
    **{name: (make, tokens_of) for name, make in LANGUAGE.items()},
    **{name: (make, images_of) for name, make in VISION.items()},
    "clip": (clip, pairs_of),
    "whisper": (
        lambda: both_sides(
            "Whisper", num_mel_bins=8, max_source_positions=8, max_target_positions=16
        ),
        speech_of,
    ),
}


SUMMED = {"t5", "bart", "whisper"}
"""Several blocks use the encoder's output: each one's gradient is summed before they are."""


def trained(
    make: Any,
    batch: Any,
    settings: dict[str, Any] | None,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = make().train()
    optimizer = kind(model.parameters(), lr=1e-3)
    plugins = {} if settings is None else {"layer-streaming": settings}
    with HybridTrainer(model, optimizer, config={"plugins": plugins}) as trainer:
        losses = [trainer.step(batch(step)).loss for step in range(3)]
    return losses, {key: value.clone() for key, value in model.state_dict().items()}


GRAPH = {"mode": "graph"}
WAYS: list[dict[str, Any]] = [{}, {"update": "in_backward", "max_active_layers": 3}]


@pytest.mark.parametrize("name", CASES)
def test_losses_and_weights_are_those_without_streaming(name: str) -> None:
    losses, weights = trained(*CASES[name], None)
    for settings in (GRAPH, *([] if name in SUMMED else WAYS)):
        found, others = trained(*CASES[name], settings)
        assert losses == found, settings
        assert [] == different(weights, others), settings


@pytest.mark.parametrize("name", sorted(SUMMED))
def test_gradients_of_what_blocks_share_are_summed_block_by_block(name: str) -> None:
    make, batch = CASES[name]

    def wide(step: int) -> dict[str, torch.Tensor]:
        given = batch(step).items()
        return {key: v.double() if v.is_floating_point() else v for key, v in given}

    losses, weights = trained(lambda: make().double(), wide, None, torch.optim.SGD)
    for settings in WAYS:
        found, others = trained(lambda: make().double(), wide, settings, torch.optim.SGD)
        assert losses == pytest.approx(found, rel=1e-13)
        torch.testing.assert_close(weights, others, rtol=1e-12, atol=1e-14)


def test_what_experts_hand_out_by_hooks_needs_the_graph() -> None:
    def make() -> nn.Module:
        more = {"num_local_experts": 4, "output_router_logits": True}
        return made("Mixtral", "ForCausalLM", **GROUPED, **more)

    with pytest.raises(RuntimeError, match=r"layers\.2' is used outside .* set mode = 'graph'"):
        trained(make, tokens_of, {})
    losses, weights = trained(make, tokens_of, None)
    found, others = trained(make, tokens_of, GRAPH)
    assert losses == found
    assert [] == different(weights, others)
