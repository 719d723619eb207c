"""Small transformers models from their configs, by architecture and width, and their batches."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from support import DEVICE

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

VOCABULARY = 64
ENDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def sizes(width: int) -> dict[str, Any]:
    """Return what most configs have: three layers of two heads, `width` wide."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        **ENDS,
    }


def grouped(width: int) -> dict[str, Any]:
    """Return the same with one head of keys and values."""
    return {**sizes(width), "num_key_value_heads": 1, "head_dim": width // 2}


def made(name: str, head: str, **options: Any) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**options)
    return getattr(transformers, f"{name}{head}")(config)


def causal(name: str, width: int = 16, **options: Any) -> nn.Module:
    return made(name, "ForCausalLM", **{**grouped(width), **options})


def gpt2(width: int = 16) -> nn.Module:
    return made(
        "GPT2",
        "LMHeadModel",
        vocab_size=VOCABULARY,
        n_embd=width,
        n_layer=3,
        n_head=2,
        n_positions=32,
        bos_token_id=1,
        eos_token_id=2,
    )


def gemma3(width: int = 16) -> nn.Module:
    config = transformers.Gemma3TextConfig(**grouped(width), sliding_window=4)
    return transformers.Gemma3ForCausalLM(config)


def deepseek(width: int = 16) -> nn.Module:
    return made(
        "DeepseekV3",
        "ForCausalLM",
        **sizes(width),
        num_key_value_heads=2,
        moe_intermediate_size=width // 2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=width // 2,
        kv_lora_rank=width // 2,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=width // 2,
    )


def mamba(width: int = 16) -> nn.Module:
    return made(
        "Mamba",
        "ForCausalLM",
        vocab_size=VOCABULARY,
        hidden_size=width,
        state_size=4,
        num_hidden_layers=3,
        pad_token_id=0,
    )


def bert(width: int = 16) -> nn.Module:
    return made("Bert", "ForMaskedLM", **sizes(width))


def t5(width: int = 16) -> nn.Module:
    return made(
        "T5",
        "ForConditionalGeneration",
        vocab_size=VOCABULARY,
        d_model=width,
        d_kv=width // 2,
        d_ff=2 * width,
        num_layers=3,
        num_heads=2,
        decoder_start_token_id=0,
    )


def both_sides(name: str, width: int = 16, **options: Any) -> nn.Module:
    """Return a model with an encoder and a decoder of two layers each."""
    sides = {
        f"{side}_{what}": number
        for side in ("encoder", "decoder")
        for what, number in {"layers": 2, "attention_heads": 2, "ffn_dim": 2 * width}.items()
    }
    given = {"vocab_size": VOCABULARY, "d_model": width, "decoder_start_token_id": 1, **ENDS}
    return made(name, "ForConditionalGeneration", **{**sides, **given, **options})


def vit(width: int = 16) -> nn.Module:
    return made(
        "ViT",
        "ForImageClassification",
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )


def convnext(width: int = 16) -> nn.Module:
    return made(
        "ConvNext",
        "ForImageClassification",
        hidden_sizes=[width // 2, width],
        depths=[2, 2],
        num_stages=2,
        patch_size=2,
        drop_path_rate=0.2,
    )


def clip(width: int = 16) -> nn.Module:
    text = {key: value for key, value in sizes(width).items() if key != "pad_token_id"}
    vision = {"hidden_size": width, "intermediate_size": 2 * width, "num_hidden_layers": 2}
    return made(
        "CLIP",
        "Model",
        text_config={**text, "max_position_embeddings": 16, "projection_dim": 8},
        vision_config={**vision, "num_attention_heads": 2, "image_size": 8, "patch_size": 4},
        projection_dim=8,
    )


def tokens_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    tokens = torch.randint(3, VOCABULARY, (2, 10), generator=drawn)
    mask = torch.ones_like(tokens)
    mask[0, 8:] = 0
    return placed({"input_ids": tokens, "attention_mask": mask, "labels": tokens})


def images_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    images = torch.randn(4, 3, 8, 8, generator=drawn)
    return placed({"pixel_values": images, "labels": torch.tensor([0, 1, 1, 0])})


def pairs_of(step: int) -> dict[str, Any]:
    tokens = tokens_of(step)
    images = images_of(step)["pixel_values"][:2]
    return {"input_ids": tokens["input_ids"], "pixel_values": images, "return_loss": True}


def speech_of(step: int) -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(step)
    sound = torch.randn(2, 8, 16, generator=drawn)
    return {**placed({"input_features": sound}), "labels": tokens_of(step)["labels"]}


def placed(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the batch on the tests' device."""
    return {name: value.to(DEVICE) for name, value in batch.items()}


LANGUAGE: dict[str, Callable[..., nn.Module]] = {
    "gpt2": gpt2,
    "llama": partial(causal, "Llama", attention_dropout=0.1),
    "mistral": partial(causal, "Mistral", sliding_window=4),
    "mixtral": partial(causal, "Mixtral", num_local_experts=4),
    "qwen2": partial(causal, "Qwen2"),
    "qwen3": partial(causal, "Qwen3"),
    "gemma2": partial(causal, "Gemma2", sliding_window=4),
    "gemma3": gemma3,
    "deepseek": deepseek,
    "mamba": mamba,
    "bert": bert,
    "t5": t5,
    "bart": partial(both_sides, "Bart", max_position_embeddings=32),
}
WHISPER = {"num_mel_bins": 8, "max_source_positions": 8, "max_target_positions": 16}
CASES: dict[str, tuple[Callable[..., nn.Module], Callable[[int], dict[str, Any]]]] = {
    **{name: (make, tokens_of) for name, make in LANGUAGE.items()},
    "vit": (vit, images_of),
    "convnext": (convnext, images_of),
    "clip": (clip, pairs_of),
    "whisper": (partial(both_sides, "Whisper", **WHISPER), speech_of),
}
