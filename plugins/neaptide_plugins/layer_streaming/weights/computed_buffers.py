"""Buffers that no state dict has. The initializers of a model on the meta device compute them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Initializer = Callable[[], object]


def computed_buffers(model: nn.Module) -> dict[torch.Tensor, torch.Tensor]:
    """Return the values of the non-persistent buffers on the meta device, on the CPU.

    They are computed by `reset_parameters()` of the buffer's module, or by `_init_weights(module)`
    of a module around it, as models of transformers have it. The model is unchanged. A buffer that
    the initializer does not fill completely, or fills with random numbers, is not in the result.
    """
    found: dict[torch.Tensor, torch.Tensor] = {}
    for module, initializer in _initializers(model):
        own = module._buffers.items()
        lacking = {
            name: buffer
            for name, buffer in own
            if buffer is not None and buffer.is_meta and name in module._non_persistent_buffers_set
        }
        if lacking and all(weight.is_meta for weight in module.parameters(recurse=False)):
            first, second = (_filled(module, lacking, initializer, fill) for fill in (0, 1))
            for name, buffer in lacking.items():
                if torch.equal(first[name], second[name]):
                    found[buffer] = first[name]
    return found


def _initializers(
    module: nn.Module, around: Callable[[nn.Module], object] | None = None
) -> Iterator[tuple[nn.Module, Initializer]]:
    """Yield each module that has an initializer, and the initializer."""
    around = getattr(module, "_init_weights", around)
    own: Initializer | None = getattr(module, "reset_parameters", None)
    if around is not None:
        yield module, partial(around, module)
    elif own is not None:
        yield module, own
    for child in module.children():
        yield from _initializers(child, around)


def _filled(
    module: nn.Module, lacking: dict[str, torch.Tensor], initializer: Initializer, fill: int
) -> dict[str, torch.Tensor]:
    """Return what the initializer makes of buffers that are full of `fill`."""
    places = {name: torch.full_like(buffer, fill, device="cpu") for name, buffer in lacking.items()}
    attributes = dict(vars(module))
    try:
        module._buffers.update(places)
        with torch.random.fork_rng(devices=()), torch.no_grad():
            torch.manual_seed(fill)
            initializer()
        # The initializer may fill the tensor in place, or replace it.
        made = {name: module._buffers[name] for name in lacking}
    finally:
        module._buffers.update(lacking)
        vars(module).clear()
        vars(module).update(attributes)
    return {name: torch.as_tensor(made[name], device="cpu") for name in lacking}
