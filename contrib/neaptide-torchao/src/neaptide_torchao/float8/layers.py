"""Exchanges linear layers for torchao's float8 layers, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torchao.float8 import Float8LinearConfig, convert_to_float8_training

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

MULTIPLE = 16
"""float8 products need sizes that are multiples of this number."""


def convert(
    model: nn.Module, recipe: str, leave_out: Collection[str], *, emulate: bool
) -> Callable[[], None]:
    """Exchange the layers of a model that float8 can compute; return what exchanges them back.

    The parameters stay the same objects.

    Raises:
        ValueError: no layer can be exchanged.
    """
    places = {
        name: (parent, child, module)
        for prefix, parent in model.named_modules(remove_duplicate=False)
        for child, module in parent.named_children()
        if _fits(module, name := f"{prefix}.{child}".lstrip("."), leave_out)
    }
    if not places:
        msg = (
            f"no linear layer inside the model has sizes that are multiples of {MULTIPLE}, so "
            "float8 computes none"
        )
        raise ValueError(msg)
    config = Float8LinearConfig.from_recipe_name(recipe)
    # Batches of any size; a copy is made only where a size is no multiple.
    object.__setattr__(config, "pad_inner_dim", True)
    object.__setattr__(config, "emulate", emulate)
    convert_to_float8_training(
        model, module_filter_fn=lambda _, name: name in places, config=config
    )

    def back() -> None:
        for parent, child, module in places.values():
            setattr(parent, child, module.train(getattr(parent, child).training))

    return back


def _fits(module: nn.Module, name: str, leave_out: Collection[str]) -> bool:
    return (
        type(module) is nn.Linear
        and module.in_features % MULTIPLE == 0
        and module.out_features % MULTIPLE == 0
        and not any(part in name for part in leave_out)
    )
