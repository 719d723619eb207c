"""Access to the full weights through the parameter store, which holds the model's weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from neaptide import ConfigError
from neaptide_toolkit.offload import BufferLayout, Slab

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    import torch
    from torch import nn

    from neaptide import ParameterStore, Span
    from neaptide.api.spans import Keeper

    from .scheme import WeightCodes
    from .targets import Target


class FullWeights:
    """Reads, evicts and replaces the full weights of targets, and stores the codes of the weights.

    If the store holds a weight in RAM (streaming), the codes of the weight are also stored in RAM.
    Each computation copies the codes to the device.
    """

    def __init__(self, model: nn.Module, store: ParameterStore, device: torch.device) -> None:
        self._store, self._device = store, device
        named = dict(model.named_parameters(remove_duplicate=False))
        self._spans = {named[span.name]: span for span in store.spans()}

    def span(self, target: Target) -> Span:
        """Return the span (the store's record of a parameter) of a target at the run's start."""
        return self._spans[target.parameter]

    def frees(self, target: Target) -> bool:
        """Return whether evicting the weight frees memory of the device."""
        return self._store.evictable([self.span(target)]).bytes > 0

    def lent(self, target: Target) -> AbstractContextManager[torch.Tensor]:
        """Return a context in which a target's weight can be read on the device."""
        return self._store.loan(self.span(target), "read", on=self._device)

    def evict(self, target: Target) -> Callable[[], None]:
        """Evict a target's weight; return the function that ends the eviction."""
        return self._store.evict([self.span(target)])

    def keep(self, target: Target, keeper: Keeper) -> Callable[[], None]:
        """Let `keeper` store a target's weight; return a function that undoes this."""
        return self._store.keep(self.span(target), keeper)

    def is_resident(self, target: Target) -> bool:
        """Return whether the weight is on the device; if so, its codes are on the device, too."""
        return self.span(target).tier == "device"

    def stored(self, target: Target, codes: WeightCodes) -> WeightCodes:
        """Return the codes on the device if the weight is resident, else a copy in RAM."""
        return codes if self.is_resident(target) else _in_ram(codes)


def check_kept(full_weights: FullWeights, targets: Sequence[Target]) -> None:
    """Raise ConfigError if a weight cannot be evicted.

    Training in int8 evicts every chosen weight.
    """
    stuck = [target.name for target in targets if not full_weights.frees(target)]
    if stuck:
        msg = (
            f"training in int8 needs weights that stay on the device and share no memory, but "
            f"{stuck[0]!r} does not (one of {len(stuck)}); use 'full' there, exclude their "
            f"modules, disable streaming, or delete the state dicts that hold them "
            f"@ plugins.int8.full"
        )
        raise ConfigError(msg)


def _in_ram(codes: WeightCodes) -> WeightCodes:
    tensors = [codes.codes, codes.scale, *([] if codes.zero is None else [codes.zero])]
    layout = BufferLayout.of(tensors)
    places = layout.views(Slab(layout.bytes).flat)
    for place, tensor in zip(places, tensors, strict=True):
        place.copy_(tensor)
    zero = None if codes.zero is None else places[2]
    return attrs.evolve(codes, codes=places[0], scale=places[1], zero=zero)
