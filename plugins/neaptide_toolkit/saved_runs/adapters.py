"""What is in the directory of an adapter, as peft writes it and reads it back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from peft import get_peft_model_state_dict

if TYPE_CHECKING:
    import torch
    from torch import nn

NAME = "default"
"""The name of an adapter that lora adds."""
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_PREFIX = "base_model.model."
"""What a `PeftModel` puts before the names of the model's parameters."""


def adapter_tensors(
    model: nn.Module, weights: dict[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """Return the tensors of the adapter of `model`, by their names in `WEIGHTS`.

    `weights` are those of the adapter by their names in the model; None: those in the model.
    """
    found = get_peft_model_state_dict(model, state_dict=weights, adapter_name=NAME)
    return {f"{_PREFIX}{name}": tensor for name, tensor in found.items()}


def adapter_config(model: nn.Module, base: str | None) -> bytes:
    """Return the content of `CONFIG` for the adapter of `model`.

    Args:
        model: has an adapter that lora has added.
        base: the directory or id of the base model, if it has one.

    Raises:
        ValueError: the model has no such adapter.
    """
    config = getattr(model, "peft_config", {}).get(NAME)
    if config is None:
        msg = f"{type(model).__name__} has no adapter that lora has added"
        raise ValueError(msg)
    told: dict[str, Any] = {
        **config.to_dict(),
        "inference_mode": True,
        "base_model_name_or_path": base,
        "auto_mapping": {
            "base_model_class": type(model).__name__,
            "parent_library": type(model).__module__,
        },
    }
    return json.dumps(told, indent=2, sort_keys=True, default=sorted).encode()
