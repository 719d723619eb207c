"""Runs of the tiny task with optimizer-offload and without it."""

from __future__ import annotations

from typing import Any

from support import CYCLE

from neaptide.api.memory import nested_tensors
from neaptide_toolkit.offload import lies_in_slab

STEPS = 14
"""Two Predict phases of `CYCLE`."""


def config(strategy: str = "cpu", others: Any = None, **settings: Any) -> dict[str, Any]:
    """Return settings with the plugin's own."""
    own = {"strategy": strategy, **settings}
    return {
        "phases": CYCLE,
        "train": {"clip_norm": 1.0},
        "plugins": {"optimizer-offload": own, **(others or {})},
    }


def plain(others: Any = None) -> dict[str, Any]:
    """Return the settings without the plugin."""
    return {"phases": CYCLE, "train": {"clip_norm": 1.0}, "plugins": others or {}}


def on_host(trainer: Any) -> list[bool]:
    """Return, for each large tensor of the state, whether it is in host memory."""
    tensors = nested_tensors(dict(trainer.optimizer.state))
    return [lies_in_slab(tensor) for tensor in tensors if tensor.nbytes >= 1024]
