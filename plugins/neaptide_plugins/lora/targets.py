"""Finds the linear layers of a model, and those that a list of names means."""

from __future__ import annotations

from collections import Counter
from difflib import get_close_matches
from typing import TYPE_CHECKING

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from transformers.pytorch_utils import Conv1D

from .config import ALL_LINEAR

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_SHOWN = 8


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return every layer that can have an adapter, by name.

    The output projection of `nn.MultiheadAttention` is none, because torch reads its weight and
    does not call it. Nor is a layer that has several names, because peft adapts one of them.
    """
    names = Counter(module for _, module in model.named_modules(remove_duplicate=False))
    return {
        name: module
        for name, module in model.named_modules()
        if name
        and isinstance(module, nn.Linear | Conv1D)
        and not isinstance(module, NonDynamicallyQuantizableLinear)
        and names[module] == 1
    }


def own_weight(layer: nn.Module) -> nn.Parameter | None:
    """Return the weight of a layer; None if the layer computes it from other parameters."""
    return dict(layer.named_parameters(recurse=False)).get("weight")


def is_tied(model: nn.Module, weight: nn.Parameter | None) -> bool:
    """Return whether several modules have `weight`."""
    users = [
        module
        for module in model.modules()
        if any(one is weight for one in module.parameters(recurse=False))
    ]
    return len(users) > 1


def all_linear(model: nn.Module) -> dict[str, nn.Module]:
    """Return the linear layers except the output head of a language model."""
    asked = getattr(model, "get_output_embeddings", None)
    head = asked() if asked is not None else None
    return {name: layer for name, layer in linear_layers(model).items() if layer is not head}


def chosen(model: nn.Module, targets: Sequence[str] | str) -> list[str]:
    """Return the names of the layers that `targets` means: names, or last parts of names.

    Raises:
        ValueError: a target matches no linear layer. The text has one line.
    """
    if targets == ALL_LINEAR:
        found = list(all_linear(model))
        if not found:
            msg = f"{type(model).__name__} has no linear layers that can have an adapter"
            raise ValueError(msg)
        return found
    names = list(linear_layers(model))
    for target in targets:
        if not any(_means(target, name) for name in names):
            raise ValueError(_unmatched(model, target, names))
    return [name for name in names if any(_means(target, name) for target in targets)]


def _means(target: str, name: str) -> bool:
    return name == target or name.endswith(f".{target}")


def _unmatched(model: nn.Module, target: str, names: Iterable[str]) -> str:
    ends = list(dict.fromkeys(name.rsplit(".", 1)[-1] for name in names))
    other = next((one for name, one in model.named_modules() if _means(target, name)), None)
    what = f"no linear layer has the name {target!r}"
    if other is not None:
        kind = type(other).__name__
        what = (
            f"{target!r} (a module of class {kind}) is no linear layer that the model calls under "
            f"this name alone"
        )
    close = get_close_matches(target, ends, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    shown = ", ".join(ends[:_SHOWN]) + (", …" if len(ends) > _SHOWN else "")
    return f"{what}{hint}; there is {shown or 'none'}"
