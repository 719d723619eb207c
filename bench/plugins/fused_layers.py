"""Time, and bytes kept for the backward, of layers with and without `fused-layers`.

    python bench/plugins/fused_layers.py [--json PATH] [--rounds N] [--device cuda] [--tiny]

Both sides compute a forward and a backward in turn, in one process. The bytes are those of the
tensors that autograd saves, without parameters, each memory counted once.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import GemmaConfig, LlamaConfig
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaMLP, LlamaRMSNorm

from neaptide_plugins.fused_layers.config import KINDS
from neaptide_plugins.fused_layers.replacing import Replacements

TOKENS, WIDTH, HIDDEN = 512, 1024, 2816


class Block(nn.Module):
    """A decoder layer of Llama, with its tables of cosines and sines."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        config._attn_implementation = "sdpa"  # noqa: SLF001 - what a model sets
        self.layer = LlamaDecoderLayer(config, 0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the layer's result."""
        width = self.layer.self_attn.head_dim
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * torch.ones(
            width, device=x.device
        )
        tables = (angles.cos()[None].to(x.dtype), angles.sin()[None].to(x.dtype))
        result = self.layer(x, position_embeddings=tables)
        return result[0] if isinstance(result, tuple) else result


def subjects(width: int, hidden: int) -> dict[str, nn.Module]:
    """Return the layers by name."""
    config = LlamaConfig(
        hidden_size=width, intermediate_size=hidden, num_attention_heads=width // 64
    )
    gemma = GemmaConfig(hidden_size=width, intermediate_size=hidden)
    return {
        "RMSNorm of Llama": LlamaRMSNorm(width),
        "RMSNorm of Gemma": GemmaRMSNorm(width, gemma.rms_norm_eps),
        "nn.RMSNorm": nn.RMSNorm(width, eps=1e-6),
        "MLP of Llama": LlamaMLP(config),
        "layer of Llama": Block(config),
    }


def passes(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> float:
    """Return the seconds of a forward and a backward."""
    layer.zero_grad()
    x = x.detach().requires_grad_()
    _synchronize(x.device)
    start = time.perf_counter()
    layer(x).backward(gradient)
    _synchronize(x.device)
    return time.perf_counter() - start


def kept(layer: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes that autograd keeps from a forward, with the input."""
    weights = {each.untyped_storage().data_ptr() for each in layer.parameters()}
    memory: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            memory[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        held = layer(x.detach().requires_grad_())
    del held
    return sum(memory.values())


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def measured(layer: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, Any]:
    """Return times and bytes of a layer, as it is and with replaced forwards."""
    gradient = torch.randn_like(x)
    times: dict[str, list[float]] = {"own": [], "fused": []}
    held = {}
    for turn in range(rounds + 1):
        for name, found in times.items():
            replacements = Replacements(KINDS if name == "fused" else (), 1)
            replacements.attach(layer)
            seconds = passes(layer, x, gradient)
            if turn:
                found.append(seconds)
            else:
                held[name] = kept(layer, x)
            replacements.detach()
    ratios = sorted(fused / own for own, fused in zip(times["own"], times["fused"], strict=True))
    return {
        "milliseconds": {name: statistics.median(found) * 1e3 for name, found in times.items()},
        "ratio": statistics.median(ratios),
        "quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "kept": held,
    }


def main() -> None:
    """Measure every layer in float32 and in bfloat16, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    tokens, width, hidden = (16, 64, 96) if arguments.tiny else (TOKENS, WIDTH, HIDDEN)
    device = torch.device(arguments.device)
    rows = []
    for dtype in (torch.float32, torch.bfloat16):
        for name, layer in subjects(width, hidden).items():
            torch.manual_seed(0)
            x = torch.randn(1, tokens, width).to(device=device, dtype=dtype)
            found = measured(layer.to(device=device, dtype=dtype), x, arguments.rounds)
            rows.append({"layer": name, "dtype": str(dtype).removeprefix("torch."), **found})
            own, fused = found["kept"]["own"], found["kept"]["fused"]
            low, high = found["quartiles"]
            print(
                f"{name:18} {rows[-1]['dtype']:9} "
                f"{found['milliseconds']['own']:8.2f} ms own {found['milliseconds']['fused']:8.2f} "
                f"ms fused, ratio {found['ratio']:.2f} ({low:.2f} to {high:.2f}), "
                f"kept {own / 2**20:.2f} and {fused / 2**20:.2f} MiB"
            )
    if arguments.json:
        facts = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        arguments.json.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
