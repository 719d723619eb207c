"""Checks the form of the section `training` of a checkpoint: counters, history, pending update."""

from __future__ import annotations

from typing import Any

import torch

from neaptide.api.phases import PHASES
from neaptide.loop.state import COUNTERS


def check_training(tree: Any, *, step: int, **_: Any) -> None:
    """Raise ValueError or TypeError if `tree` is not the state of a training after `step` updates.

    Tensors may be on the device meta.
    """
    match tree:
        case {
            "schedule": {"phase": str(phase), "done": done, "uncorrected": uncorrected, **one},
            "history": {
                "updates": updates,
                "losses": list(losses),
                "gradient_norms": list(norms),
                **two,
            },
            "accumulation": {"pieces": pieces, **sums},
            "pending": pending,
            **counters,
        } if phase in PHASES and counters.keys() == COUNTERS and not (one or two):
            whole = [*counters.values(), done, uncorrected, updates, pieces]
            sound = sums.keys() == {"reference", "weight", "loss"}
            if not (sound and all(type(each) is int and each >= 0 for each in whole)):
                msg = f"the counters must be whole numbers from 0 (got {whole}, {sums})"
                raise ValueError(msg)
            if not all(map(_is_number, (*losses, *norms, *sums.values()))):
                msg = "losses, gradient norms and sums must be numbers"
                raise TypeError(msg)
            if counters["step"] != step:
                msg = f"its step is {counters['step']}, the checkpoint's {step}"
                raise ValueError(msg)
            _check_pending(pending)
        case _:
            msg = "not the state of a training"
            raise ValueError(msg)


def _is_number(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return not value.ndim
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_pending(tree: Any) -> None:
    number = int | float
    kinds: dict[str, Any] = {"step": int, "phase": str, "loss": number, "applied": bool}
    kinds["gradient_norm"] = number | None
    known = tree is None or (tree.keys() == kinds.keys() and tree["phase"] in PHASES)
    if not known or any(not isinstance(value, kinds[name]) for name, value in (tree or {}).items()):
        msg = "not a pending update"
        raise ValueError(msg)
