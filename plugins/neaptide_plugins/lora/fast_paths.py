"""Turns off paths of torch that read a layer's weight instead of calling the layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def without_fast_paths(model: nn.Module, layers: Iterable[nn.Module]) -> Callable[[], None]:
    """Let each `nn.TransformerEncoderLayer` that contains one of `layers` call it in evaluations.

    Its fast path computes with the weights of its linear layers, so it would leave an adapter out.

    Returns:
        A function that undoes it.
    """
    wanted = {id(layer) for layer in layers}
    before: list[tuple[nn.Module, str, Any]] = []
    for kind, name, off in (
        (nn.TransformerEncoderLayer, "activation_relu_or_gelu", 0),
        (nn.TransformerEncoder, "use_nested_tensor", False),
    ):
        for module in model.modules():
            if isinstance(module, kind) and any(id(one) in wanted for one in module.modules()):
                before.append((module, name, getattr(module, name)))
                setattr(module, name, off)

    def undo() -> None:
        for module, name, value in before:
            setattr(module, name, value)

    return undo
