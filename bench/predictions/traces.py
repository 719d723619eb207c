"""Makes the input of `forecast.py`: losses and gradient norms of small runs.

Each run is trained once and stored as JSON.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from neaptide import HybridTrainer
from neaptide.run import assembly

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 1500
_GPT = {
    "model": {
        "name": "builtin:byte-gpt",
        "options": {"layers": 2, "width": 64, "heads": 2, "context": 64},
    },
    "data": {"name": "builtin:python-stdlib", "options": {"context": 64}},
}
_LINEAR = {"lr-schedule": {"name": "linear", "warmup": 50, "count_jumps": False}}
_CONSTANT = {"lr-schedule": {"name": "constant", "warmup": 50, "count_jumps": False}}
TASKS: dict[str, dict[str, Any]] = {
    "byte-gpt, linear": {**_GPT, "plugins": _LINEAR},
    "byte-gpt, constant": {**_GPT, "plugins": _CONSTANT},
    "digits-cnn, linear": {
        "model": {"name": "builtin:digits-cnn", "options": {"channels": 8}},
        "data": {"name": "builtin:digits"},
        "plugins": _LINEAR,
    },
}
"""Configurations by name, without a seed."""


def config_of(task: str, seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Return the whole configuration of one training run."""
    return {
        **TASKS[task],
        "seed": seed,
        "train": {"steps": steps, "batch_size": 16, "device": "cpu", "grad_norm": True},
        "optimizer": {"name": "adamw", "lr": 3e-3},
        "eval": {"every": 0},
        "run": {"progress": "quiet"},
    }


def trace(task: str, seed: int, kept: Path) -> dict[str, list[float]]:
    """Return `losses` and `grad_norms` of a run, one number per update.

    If the directory `kept` does not contain the run, train the run first.
    """
    path = kept / f"{task.replace(', ', '-')}-{seed}.json"
    if not path.exists():
        found = _trained(config_of(task, seed))
        kept.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    loaded: dict[str, list[float]] = json.loads(path.read_text())
    return loaded


def _trained(config: dict[str, Any]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"losses": [], "grad_norms": []}

    def keep(result: Any, _state: Any) -> None:
        found["losses"].append(result.loss)
        found["grad_norms"].append(result.grad_norm)

    with HybridTrainer.from_config(config) as trainer:
        data = assembly.build_data(trainer.config, trainer.hooks)
        trainer.fit(data, observe=keep)
    return found
