"""Tokens a second that `huggingface-data` gives, beside those that training takes.

    python bench/models/data.py [--rounds N] [--seconds S] [--documents N] [--json PATH]

Three programs run alternately in one process: tokenizing the documents and storing the tokens,
which happens once; making batches of stored tokens; and training a small Llama on such batches. The
last rows are ratios to training, round by round. Each figure is the median over the rounds, with
the lowest and the highest. Set OMP_WAIT_POLICY=PASSIVE, as `neaptide run` does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from neaptide.api.task import DataSpec
from neaptide_plugins.huggingface_data.config import HuggingFaceDataOptions
from neaptide_plugins.huggingface_data.preparing import prepare

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH, BATCH = 512, 4
_RATES = "tokenizing", "batches", "training"
_RATIOS = "tokenizing / training", "batches / training"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def write(folder: Path, documents: int) -> None:
    """Write texts, half of them as chats, and a tokenizer of 4096 tokens."""
    drawn = random.Random(0)  # noqa: S311 - not for secrets
    words = ["".join(drawn.choices(_LETTERS, k=drawn.randint(2, 9))) for _ in range(4000)]

    def text() -> str:
        return " ".join(drawn.choices(words, k=drawn.randint(10, 300)))

    with (folder / "data.jsonl").open("w", encoding="utf-8") as file:
        for place in range(documents):
            chat = [{"role": "user", "content": text()}, {"role": "assistant", "content": text()}]
            file.write(json.dumps({"messages": chat} if place % 2 else {"text": text()}) + "\n")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    roles = ["<|end|>", "<|user|>", "<|assistant|>"]
    trainer = trainers.BpeTrainer(vocab_size=4096, special_tokens=roles, show_progress=False)
    made.train_from_iterator([" ".join(words)], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")  # noqa: S106
    tokenizer.chat_template = (
        "{% for one in messages %}<|{{ one['role'] }}|>{{ one['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    tokenizer.save_pretrained(folder)


def prepared(folder: Path, cache: Path) -> Any:
    """Return the training data; tokenize them if `cache` does not have them."""
    options = HuggingFaceDataOptions(tokenizer=str(folder), length=LENGTH, cache=str(cache))
    spec = DataSpec("jsonl", str(folder / "data.jsonl"), {}, BATCH, 1, 0)
    return prepare(spec, options, lambda _: None, print).data.train


def trained() -> Callable[[Any], None]:
    """Return a step of training of a Llama with 3 million weights."""
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Any) -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def rate(batches: Any, use: Callable[[Any], None], seconds: float) -> float:
    """Return the tokens a second at which `use` takes the batches."""
    tokens, began = 0, time.perf_counter()
    while (took := time.perf_counter() - began) < seconds:
        batch = next(batches)
        use(batch)
        tokens += batch["input_ids"].numel()
    return tokens / took


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--documents", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in (*_RATES, *_RATIOS)}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write(folder, given.documents)
        train, step = prepared(folder, folder / "cache"), trained()
        batches = (batch for _ in cycle([0]) for batch in train)
        for place in range(given.rounds):
            began = time.perf_counter()
            fresh = prepared(folder, folder / f"cache-{place}")
            tokens = len(fresh.source.tokens)
            found["tokenizing"].append(tokens / (time.perf_counter() - began))
            found["batches"].append(rate(batches, lambda _: None, given.seconds / 3))
            found["training"].append(rate(batches, step, given.seconds))
            for ratio in _RATIOS:
                found[ratio].append(found[ratio.split(" / ")[0]][-1] / found["training"][-1])
    cores = len(os.sched_getaffinity(0))
    print(f"{cores} cores, {given.rounds} rounds, {tokens:,} tokens\n")
    print("| | median | lowest | highest |\n|---|---|---|---|")
    for name, values in found.items():
        unit = name if name in _RATIOS else f"{name}, tokens/s"
        shown = (statistics.median(values), min(values), max(values))
        print(f"| {unit} | " + " | ".join(f"{value:,.0f}" for value in shown) + " |")
    if given.json:
        given.json.write_text(json.dumps({"cores": cores, **found}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
