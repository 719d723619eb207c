"""Runs of the tiny task with optimizer-offload and without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from support import CYCLE
from torch import nn

from neaptide_toolkit.offload import lies_in_slab
from neaptide_toolkit.offload.resident_store import ResidentStore
from neaptide_toolkit.tensors import nested_tensors

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from neaptide import Span

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


def state_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]
) -> tuple[ResidentStore, list[Span]]:
    """Return a store of `parameters`, and their spans."""
    store = ResidentStore(nn.ParameterList(parameters), optimizer)
    return store, store.spans()
