"""Parameter groups for APOLLO. Module and name of a weight decide whether it may be projected."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Sequence


def parameter_groups(model: nn.Module, adamw: Sequence[str]) -> list[dict[str, Any]]:
    """Return groups for `Apollo`; they contain every trainable parameter once, in model order.

    AdamW updates embeddings and weights whose name matches a pattern of `adamw`. A tied weight has
    several names or modules; AdamW updates it if one of them alone would select AdamW. `Apollo`
    itself chooses AdamW for what is no matrix.
    """
    kinds: dict[nn.Parameter, str] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        embeds = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for name, param in module.named_parameters(recurse=False, remove_duplicate=False):
            whole = f"{prefix}.{name}" if prefix else name
            kept = embeds or any(fnmatchcase(whole, pattern) for pattern in adamw)
            if kept or param not in kinds:
                kinds[param] = "adamw" if kept else "apollo"
    grouped: dict[str, list[nn.Parameter]] = {"apollo": [], "adamw": []}
    for param, kind in kinds.items():
        if param.requires_grad:
            grouped[kind].append(param)
    return [{"params": params, "kind": kind} for kind, params in grouped.items() if params]
