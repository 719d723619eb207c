"""Plugins on a device, through the trainer: exact ones give the resident run's bits, none races."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from on_device import task_on_device
from support import same_tensors, tensors_of

from neaptide import HybridTrainer
from neaptide_toolkit.testing.tiny import tiny_loss

STEPS = 24
ACCUMULATED = {"gradient-accumulation": {"steps": 3}}

EXACT: dict[str, dict[str, Any]] = {
    "streaming": {"layer-streaming": {}},
    "streaming, optimizer on the device": {"layer-streaming": {"optimizer_on": "device"}},
    "streaming, optimizer on the cpu": {"layer-streaming": {"optimizer_on": "cpu"}},
    "streaming, in backward": {"layer-streaming": {"update": "in_backward"}},
    "streaming, graph": {"layer-streaming": {"mode": "graph"}},
    "streaming, inputs on the host": {"layer-streaming": {"inputs": "host"}},
    "streaming, some phases": {"layer-streaming": {"phases": ["warmup", "predict"]}},
    "streaming, accumulated": {**ACCUMULATED, "layer-streaming": {}},
    "streaming, graph, accumulated": {**ACCUMULATED, "layer-streaming": {"mode": "graph"}},
    "optimizer-offload": {"optimizer-offload": {}},
    "optimizer-offload, pinned": {"optimizer-offload": {"strategy": "pinned"}},
    "activation-checkpointing": {"activation-checkpointing": {}},
    "profiler": {"profiler": {}},
    "delayed-verdict": {"delayed-verdict": {}},
}

OTHERS: dict[str, dict[str, Any]] = {
    "activation-compression": {"activation-compression": {}},
    "int8": {"int8": {}},
    "low-precision-backward": {"low-precision-backward": {}},
    "mixed-precision": {"mixed-precision": {}},
    "dynamics-linear": {"dynamics-linear": {}},
    "divergence-monitor": {"divergence-monitor": {}},
}


def trained(plugins: dict[str, Any]) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(1)
    config = {
        "train": {"steps": STEPS, "device": "cuda"},
        "phases": {"warmup": {"steps": 10}, "full": {"steps": 4}, "correct": {"steps": 2}},
        "plugins": {"ema": {}, "predictor-drift": {"min_window": 8}, **plugins},
    }
    task = task_on_device(streams="layer-streaming" in plugins)
    batches = task.batches
    trainer = HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config)
    with trainer:
        losses = [trainer.step(batch).loss for batch in batches[:STEPS]]
        losses.append(trainer.evaluate(batches[STEPS:]))
    return losses, {name: value.cpu() for name, value in tensors_of(trainer.model).items()}


@cache
def resident(*, accumulated: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    return trained(ACCUMULATED if accumulated else {})


@pytest.mark.parametrize("way", EXACT)
def test_an_exact_plugin_gives_the_resident_runs_bits(way: str) -> None:
    losses, weights = trained(EXACT[way])
    plain, others = resident(accumulated="accumulated" in way)
    assert plain == losses
    assert same_tensors(others, weights)


@pytest.mark.parametrize("way", OTHERS)
def test_a_plugin_trains_on_the_device_without_a_race(way: str) -> None:
    losses, _ = trained(OTHERS[way])
    assert losses[-1] < losses[0]
