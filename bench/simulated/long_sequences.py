"""Memory of a step of transformers' families at 4k and 8k tokens, with and without two plugins.

    python bench/simulated/long_sequences.py --json docs/benchmarks/long-sequences.json

A dry run of a step of one layer of each family on one sequence: width 512, 8 heads of 64, float32,
a GPU. The modelled allocator counts the bytes; nothing is computed. `own` is the model's code with
`attn_implementation = "eager"`. The others are torch's attention (`sdpa`), for which a backend
without scores is assumed where torch has one, and eager with `flash-attention` and `fused-layers`.
The peak of the step counts, less the weights, their gradients and the optimizer's state.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from neaptide import Data, Task
from neaptide.hooks.enabling import configured
from neaptide_toolkit.dry_run.running import dry_run

LENGTHS = (4096, 8192)
WORDS, WIDTH = 512, 512
SIZES: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 4 * WIDTH,
    "num_hidden_layers": 1,
    "num_attention_heads": WIDTH // 64,
    "max_position_embeddings": max(LENGTHS),
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SIZES, "num_key_value_heads": 2}
NO_DROPOUT = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
GPT2 = {
    **dict.fromkeys(("attn_pdrop", "resid_pdrop", "embd_pdrop"), 0.0),
    "vocab_size": WORDS,
    "n_embd": WIDTH,
    "n_layer": 1,
    "n_head": WIDTH // 64,
    "n_positions": max(LENGTHS),
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama": ("ForCausalLM", GROUPED),
    "Qwen2": ("ForCausalLM", GROUPED),
    "Mistral": ("ForCausalLM", {**GROUPED, "sliding_window": 1024}),
    "Gemma": ("ForCausalLM", {**GROUPED, "head_dim": 64}),
    "Gemma2": ("ForCausalLM", {**GROUPED, "head_dim": 64, "sliding_window": 1024}),
    "Phi": ("ForCausalLM", SIZES),
    "GPTNeoX": ("ForCausalLM", SIZES),
    "Olmo": ("ForCausalLM", GROUPED),
    "Mixtral": ("ForCausalLM", {**GROUPED, "num_local_experts": 2}),
    "GPT2": ("LMHeadModel", GPT2),
    "Bert": ("ForMaskedLM", {**SIZES, **NO_DROPOUT}),
}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "own": ("eager", {}),
    "sdpa": ("sdpa", {}),
    "flash-attention": ("eager", {"flash-attention": {}}),
    "both": ("eager", {"flash-attention": {}, "fused-layers": {}}),
}
WITHOUT_SDPA = {"Gemma2"}
"""transformers refuses torch's attention for these: it has no softcap."""
MIB = 1 << 20


def family(name: str, attention: str) -> Task:
    """Return a model of one layer."""
    import transformers  # noqa: PLC0415 - takes seconds

    head, options = FAMILIES[name]
    config = getattr(transformers, f"{name}Config")(**options, attn_implementation=attention)
    return Task(
        getattr(transformers, f"{name}{head}")(config), lambda model, batch: model(**batch).loss
    )


def sequences(length: int) -> Data:
    """Return batches of one sequence."""
    drawn = torch.randint(3, WORDS, (4, 1, length), generator=torch.Generator().manual_seed(0))
    return Data([{"input_ids": one, "labels": one} for one in drawn])


def peak(name: str, length: int, way: str) -> int:
    """Return the bytes of a step on the device, less what stays between the steps."""
    attention, plugins = WAYS[way]
    config = {
        "model": {
            "name": "long_sequences:family",
            "options": {"name": name, "attention": attention},
        },
        "data": {"name": "long_sequences:sequences", "options": {"length": length}},
        "train": {"batch_size": 1, "device": "cpu"},
        "plugins": plugins,
    }
    log = dry_run(configured(config, ())[0], (), "cuda").allocations
    highest = max(one.bytes for one in log.peaks("device").values())
    with torch.device("meta"):
        weights = sum(one.nbytes for one in family(name, attention).module.parameters())
    return highest - 4 * weights


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="", help="a family")
    given = parser.parse_args()
    rows = []
    print(f"| family | tokens | {' | '.join(WAYS)} | less by |\n|{'---|' * (len(WAYS) + 3)}")
    for name in FAMILIES:
        for length in LENGTHS if given.only in ("", name) else ():
            ways = [way for way in WAYS if way != "sdpa" or name not in WITHOUT_SDPA]
            found = {way: peak(name, length, way) for way in ways}
            rows.append({"family": name, "tokens": length, **found})
            told = " | ".join(f"{found[way] / MIB:,.0f}" if way in found else "" for way in WAYS)
            less = 1 - found["both"] / found["own"]
            print(f"| {name} | {length:,} | {told} | {less:.0%} |", flush=True)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
