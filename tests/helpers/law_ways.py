"""The exact plugins, and how they are run."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from support import DEVICE

from neaptide.hooks.registry import installed_plugins

SPECS = installed_plugins()
STREAMING = "layer-streaming"
WAYS: dict[str, dict[str, Any]] = {
    "checkpointing": {"activation-checkpointing": {}},
    "checkpointing, every second block": {"activation-checkpointing": {"interval": 2}},
    "streaming": {STREAMING: {"optimizer_on": "cpu"}},
    "streaming, optimizer on the device": {STREAMING: {"optimizer_on": "device", "resident": 1}},
    "streaming, in backward": {
        STREAMING: {"optimizer_on": "device", "update": "in_backward", "resident": 0}
    },
    "streaming, graph": {STREAMING: {"mode": "graph", "optimizer_on": "device"}},
    "optimizer-offload": {"optimizer-offload": {}},
    "ema": {"ema": {"tier": "host"}},
    "divergence-monitor": {"divergence-monitor": {}},
    "profiler, tensorboard": {"profiler": {}, "tensorboard": {}},
}


def pairs() -> dict[str, dict[str, Any]]:
    """Return every two ways that do not claim the same."""

    def claims(way: str) -> set[str]:
        return {*WAYS[way], *(claim for name in WAYS[way] for claim in SPECS[name].claims)}

    return {
        f"{one} + {other}": {**WAYS[one], **WAYS[other]}
        for one, other in combinations(WAYS, 2)
        if not claims(one) & claims(other)
    }


_IN_RAM = "between steps, streamed weights are in RAM: "
LISTED = {
    "autograd.grad of weights by hand": "torch raises before a plugin is asked: outside of "
    "trainer.step a recomputed block has no graph",
    "vector_to_parameters": _IN_RAM + "torch raises, as the parameters are on two devices",
    "_foreach_mul_ of all": _IN_RAM + "torch raises, as the parameters are on two devices",
    "nn.init of one weight": _IN_RAM + "random numbers are those of the CPU's generator",
    "reset_parameters of a block": _IN_RAM + "random numbers are those of the CPU's generator",
}
"""What is neither exact nor refused with streaming, and why."""


def listed(habit: str, plugins: dict[str, Any]) -> bool:
    """Return whether a habit with these plugins is in `LISTED`."""
    if STREAMING not in plugins or habit not in LISTED:
        return False
    recomputes = plugins[STREAMING].get("mode") != "graph"
    return DEVICE.type != "cpu" or (recomputes and habit.startswith("autograd"))
