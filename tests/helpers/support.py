"""Small real runs for the tests: a task, strangers' plugins made on the spot, and comparisons."""

from __future__ import annotations

import itertools
import mmap
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from neaptide import HybridTrainer, Plugin, PluginSpec
from neaptide_toolkit.testing.parting import partings
from neaptide_toolkit.testing.tiny import accelerator_or_cpu, tiny_loss, tiny_task

if TYPE_CHECKING:
    from collections.abc import Iterable

DEVICE = accelerator_or_cpu()
"""Where the tests train: a GPU, which may be simulated, or the CPU."""

REAL_GPU = DEVICE.type != "cpu" and "simulated_gpu" not in sys.modules
ROUNDS_OTHERWISE = REAL_GPU or bool(os.environ.get("DEVICE_ROUNDS_OTHERWISE"))
"""Whether AdamW's update on the device has not the bits of one on the CPU, as on a real GPU."""

_numbers = itertools.count()

CYCLE: dict[str, Any] = {
    "warmup": {"steps": 2},
    "full": {"steps": 4},
    "predict": {"max_horizon": 5, "correction_interval": 1, "rise": 10.0},
    "correct": {"steps": 2},
}
"""All four phases within ten updates, with a guard that lets nearly everything through."""

HELPERS = Path(__file__).resolve().parent


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """Return an environment like this process's that imports from `folders` and the helpers."""
    found = [*map(str, folders), str(HELPERS), os.environ.get("PYTHONPATH")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, found)), **more}


def some(cases: Iterable[Any], of: int = 3) -> list[Any]:
    """Return the cases as parameters; all but every `of`-th are slow."""
    import pytest

    return [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)),
            marks=[pytest.mark.slow] if place % of else [],
        )
        for place, case in enumerate(cases)
    ]


def stranger(cls: type[Plugin[Any]], name: str = "stranger", **manifest: Any) -> PluginSpec:
    """Return the manifest of `cls`, importable as if it came from somebody's module."""
    module = ModuleType(f"strangers_module_{next(_numbers)}")
    module.__dict__["Stranger"] = cls
    sys.modules[module.__name__] = module
    return PluginSpec(name=name, load=f"{module.__name__}:Stranger", **manifest)


def plugin_with(**members: Any) -> type[Plugin[Any]]:
    """Return a plugin class with the given methods."""
    return type("Stranger", (Plugin,), members)


def tiny_trainer(
    config: dict[str, Any] | None = None,
    plugins: Any = (),
    seed: int = 0,
    device: torch.device = DEVICE,
    **given: Any,
) -> tuple[HybridTrainer, list[Any]]:
    """Return a trainer of the tiny task (batch norm, dropout, tied, frozen) and its batches."""
    task = tiny_task(seed, device=device)
    given = {"optimizer": task.optimizer, "loss_fn": tiny_loss, "plugins": plugins, **given}
    return HybridTrainer(task.model, config=config, **given), task.batches


def digest_after(
    steps: int, config: dict[str, Any] | None = None, plugins: Any = (), seed: int = 0
) -> str:
    """Return the digest of the tiny task after `steps` steps."""
    trainer, batches = tiny_trainer(config, plugins, seed)
    with trainer:
        for batch in batches[:steps]:
            trainer.step(batch)
        return trainer.digest()


def tensors_of(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of all parameters and buffers."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def random_state() -> torch.Tensor:
    """Return the states of torch's generators: the CPU's, and that of `DEVICE`."""
    states = [torch.get_rng_state()]
    if DEVICE.type != "cpu":
        states.append(torch.get_device_module(DEVICE).get_rng_state())
    return torch.cat(states)


def same_tensors(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Return whether names, dtypes and bits agree."""
    return not partings(one, other)


def touched(elements: int) -> torch.Tensor:
    """Return float32 ones in pages of their own: no heap has them already, or keeps them."""
    return torch.frombuffer(mmap.mmap(-1, 4 * elements), dtype=torch.float32).fill_(1.0)
