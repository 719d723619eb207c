"""The files of a Llama with random weights, and how they leave the page cache."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

from neaptide_toolkit.machine.mappings import cached_part

if TYPE_CHECKING:
    from pathlib import Path

_GIB = 2**30
_LAYERS = 16
_SHARDS = 4


def width_of(gib: float) -> int:
    """Return the width at which the decoder layers take about `gib` in bfloat16."""
    return max(64, round((gib * _GIB / 2 / _LAYERS / 12) ** 0.5 / 64) * 64)


def write(folder: Path, gib: float) -> None:
    """Write a Llama with random weights in bfloat16, one shard at a time."""
    width = width_of(gib)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=_LAYERS,
        num_attention_heads=width // 64,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        tie_word_embeddings=False,
    )
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {name: one.shape for name, one in LlamaForCausalLM(config).state_dict().items()}
    torch.manual_seed(0)
    names = [*shapes]
    each = -(-len(names) // _SHARDS)
    placed, total = {}, 0
    for number in range(_SHARDS):
        file = f"model-{number + 1:05d}-of-{_SHARDS:05d}.safetensors"
        shard = {
            name: torch.empty(shapes[name], dtype=torch.bfloat16).normal_(std=0.02)
            for name in names[number * each : (number + 1) * each]
        }
        save_file(shard, folder / file, metadata={"format": "pt"})
        placed |= dict.fromkeys(shard, file)
        total += sum(one.nbytes for one in shard.values())
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def shards(folder: Path) -> list[Path]:
    """Return the files of weights."""
    return sorted(folder.glob("*.safetensors"))


def cool(folder: Path) -> float:
    """Let the files leave the page cache; return the share of their pages that stays."""
    kept = size = 0.0
    for path in shards(folder):
        with path.open("rb") as file:
            os.fsync(file)
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        part = cached_part(path)
        if part is None:
            msg = "this system does not say what is in its page cache"
            raise OSError(msg)
        kept += part * path.stat().st_size
        size += path.stat().st_size
    return kept / size
