"""A tokenizer with a chat template, a model that knows its tokens, and files of chats and texts."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""As most models have it: nothing says which tokens the assistant wrote."""
MARKED = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>"
    "{% endgeneration %}{% else %}{{ message['content'] }}<|end|>{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if loop.last %}(thinking){% endif %}{{ message['content'] }}<|end|>{% endfor %}"
)
"""Writes the last message in another way than the earlier ones."""
_SPECIAL = ["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
_WORDS = [
    "the",
    "tide",
    "rises",
    "and",
    "falls",
    "with",
    "moon",
    "sun",
    "water",
    "shore",
    "wave",
    "sand",
    "wind",
    "boat",
    "sail",
    "salt",
]


def sentence(random: random.Random, most: int = 12) -> str:
    """Return some words."""
    return " ".join(random.choices(_WORDS, k=random.randint(1, most)))


def chats(count: int, seed: int = 0, turns: int = 3) -> list[list[dict[str, str]]]:
    """Return conversations of different lengths."""
    drawn = random.Random(seed)
    found = []
    for _ in range(count):
        messages = [{"role": "system", "content": sentence(drawn)}]
        for _ in range(drawn.randint(1, turns)):
            messages.append({"role": "user", "content": sentence(drawn)})
            messages.append({"role": "assistant", "content": sentence(drawn)})
        found.append(messages)
    return found


def write_chats(path: Path, conversations: list[Any]) -> Path:
    """Write a file of JSON lines."""
    lines = [json.dumps({"messages": one}) for one in conversations]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_texts(path: Path, count: int, seed: int = 0) -> Path:
    """Write a file of JSON lines with texts of different lengths."""
    drawn = random.Random(seed)
    lines = [json.dumps({"text": sentence(drawn, 60)}) for _ in range(count)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def save_tokenizer(folder: Path, template: str | None = PLAIN) -> Any:
    """Train a tokenizer of bytes, save it, and return it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([" ".join(_WORDS)] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_model(folder: Path, **changes: Any) -> Any:
    """Save a small Llama that has an embedding for every token of `save_tokenizer`."""
    settings = {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 256,
        **changes,
    }
    torch.manual_seed(1)
    model = LlamaForCausalLM(LlamaConfig(**settings))
    model.save_pretrained(folder)
    return model
