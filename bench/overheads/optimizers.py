"""The optimizer of the configuration, fused and not, on nets of three sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide import HybridTrainer, Loss
from neaptide_plugins.builtin_models import byte_gpt
from neaptide_plugins.builtin_models.config import ByteGptOptions
from overheads.task import CLASSES, FEATURES, batches, looped, loss_fn, net

if TYPE_CHECKING:
    from collections.abc import Callable

FORMS: dict[str, dict[str, Any]] = {"fused = false": {"fused": False}, "default": {}}
"""The options of AdamW, by name. The first form is what the others are compared with."""
WIDTH = 1_632


def mlp() -> nn.Module:
    """Return six linear layers with 10.7 million parameters."""
    torch.manual_seed(0)
    inner = [each for _ in range(4) for each in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    return nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.GELU(), *inner, nn.Linear(WIDTH, CLASSES))


def gpt() -> nn.Module:
    """Return a GPT on bytes with 4.9 million parameters."""
    torch.manual_seed(0)
    return byte_gpt.build(ByteGptOptions(width=256, layers=6, heads=8, context=128))


def loss_of_bytes(model: nn.Module, batch: Any) -> Loss:
    """Return the summed cross-entropy of the next byte, and how many bytes were predicted."""
    return Loss(*byte_gpt.loss(model, batch))


def tokens() -> list[Any]:
    """Return eight batches of 4 sequences of 64 bytes."""
    random = torch.Generator().manual_seed(1)
    return [{"tokens": torch.randint(256, (4, 65), generator=random)} for _ in range(8)]


NETS: dict[str, tuple[Callable[[], nn.Module], Any, Callable[[], list[Any]]]] = {
    "7k net": (net, loss_fn, batches),
    "10.7M MLP": (mlp, loss_fn, batches),
    "4.9M GPT": (gpt, loss_of_bytes, tokens),
}
"""Nets by name: what builds one, its loss, and its batches."""


def subjects(device: str) -> dict[str, dict[str, Callable[[int], float]]]:
    """Return a subject per form of the optimizer, by the name of the net."""
    return {
        name: {form: _trained(name, options, device) for form, options in FORMS.items()}
        for name in NETS
    }


def _trained(name: str, options: dict[str, Any], device: str) -> Callable[[int], float]:
    make, loss, data = NETS[name]
    config = {"phases": {"warmup": {"steps": 0}}, "optimizer": {"options": options}}
    trainer = HybridTrainer(make().to(device), loss_fn=loss, config=config)
    return looped(trainer.step, device, data())
