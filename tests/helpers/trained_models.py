"""Run directories of small trained models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_families import batches, saved
from support import DEVICE

from neaptide import HybridTrainer

STEPS = 2


def trained(
    family: str,
    *,
    run: str = "run",
    options: dict[str, Any] | None = None,
    plugins: dict[str, Any] | None = None,
    sections: dict[str, Any] | None = None,
) -> Any:
    """Save a base model in `base` and train it in the run directory `run`; return it on the CPU.

    Both lie in the current directory, and `theirs` with what transformers saves of the trained
    model. The weights of what is returned are those that were trained.
    """
    model = saved(family, Path("base"))
    config = {
        "model": {"name": "hf:base", "options": options or {}},
        "run": {"dir": run},
        "train": {"steps": STEPS, "device": str(DEVICE)},
        "optimizer": {"name": "adamw", "lr": 0.05},
        "plugins": plugins or {},
        **(sections or {}),
    }
    with HybridTrainer.from_config(config) as trainer:
        trainer.fit(batches(family, STEPS))
        state = {name: value.cpu().clone() for name, value in trainer.model.state_dict().items()}
    # Loaded, because a conversion of the whole module would convert buffers of rotary embeddings.
    model.to(next(iter(state.values())).dtype).load_state_dict(state)
    model.save_pretrained("theirs")
    return type(model).from_pretrained("theirs").eval()


def logits(model: Any, family: str) -> torch.Tensor:
    """Return what the model says of a batch."""
    (batch,) = batches(family, 1)
    with torch.no_grad():
        found: torch.Tensor = model(**batch).logits
    return found
