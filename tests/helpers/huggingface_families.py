"""Small models of ten families of transformers, saved as their users save them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import transformers

if TYPE_CHECKING:
    from pathlib import Path

WORDS, WIDTH, LENGTH = 96, 32, 12
_DECODER = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_GROUPED = {**_DECODER, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", _GROUPED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {**_GROUPED, "tie_word_embeddings": True}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**_GROUPED, "sliding_window": 8}),
    "gemma": ("GemmaConfig", "GemmaForCausalLM", {**_GROUPED, "head_dim": 8}),
    "phi": ("PhiConfig", "PhiForCausalLM", _DECODER),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", _DECODER),
    "olmo": ("OlmoConfig", "OlmoForCausalLM", _GROUPED),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {**_GROUPED, "num_local_experts": 3}),
    "bert": (
        "BertConfig",
        "BertForMaskedLM",
        {**_DECODER, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0},
    ),
    "t5": (
        "T5Config",
        "T5ForConditionalGeneration",
        {
            "vocab_size": WORDS,
            "d_model": WIDTH,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "dropout_rate": 0.0,
            "decoder_start_token_id": 0,
        },
    ),
    "vit": (
        "ViTConfig",
        "ViTForImageClassification",
        {
            "hidden_size": WIDTH,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 8,
            "patch_size": 4,
            "num_labels": 5,
        },
    ),
}


def saved(family: str, folder: Path) -> Any:
    """Save a model with random weights; return it."""
    config, model, options = FAMILIES[family]
    torch.manual_seed(1)
    made = getattr(transformers, model)(getattr(transformers, config)(**options))
    made.save_pretrained(folder)
    return made


def batches(family: str, count: int) -> list[dict[str, torch.Tensor]]:
    """Return batches with labels."""
    generator = torch.Generator().manual_seed(2)

    def drawn(most: int, *shape: int) -> torch.Tensor:
        return torch.randint(3, most, shape, generator=generator)

    if family == "vit":
        return [
            {"pixel_values": torch.randn(4, 3, 8, 8, generator=generator), "labels": drawn(5, 4)}
            for _ in range(count)
        ]
    return [
        {"input_ids": drawn(WORDS, 4, LENGTH), "labels": drawn(WORDS, 4, LENGTH)}
        for _ in range(count)
    ]
