"""What a ParameterStore lends and calls: spans, riders, snapshots, keepers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs
import torch

if TYPE_CHECKING:
    from .memory import Tier

Mode = Literal["read", "write"]


@attrs.frozen(eq=False)
class Span:
    """A parameter, or the slice of one that the store moves as a whole."""

    name: str
    """Qualified name in the module: the first one, where a parameter has several."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    tier: Tier
    trainable: bool
    tied: tuple[str, ...] = ()
    """Its other names."""

    @property
    def bytes(self) -> int:
        """Bytes of the weights alone."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


Rider = Callable[[Span, torch.Tensor, "torch.Tensor | None"], None]
"""`rider(span, weight, delta)`: `weight` is the new value, valid inside the call only; `delta` is
what a jump added to it, or None after an ordinary update."""

DeltaOf = Callable[[Span], "torch.Tensor | None"]
"""What a predicted update adds to a span."""

Change = Callable[[Span, torch.Tensor], "torch.Tensor | None"]
"""`change(span, weight)`: what a jump has added to `weight`; None after an ordinary update."""


@attrs.frozen(eq=False)
class Snapshot:
    """Bitwise copies of weights (and of the optimizer's state) that `restore` puts back."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None


class Keeper(Protocol):
    """Holds one weight in a form of its own, which may be less than what it is given."""

    def read(self) -> torch.Tensor:
        """Return the weight it holds, on the device, in the span's shape and dtype."""

    def write(self, weight: torch.Tensor) -> None:
        """Hold `weight` from now on. Writing what was read changes nothing, bit for bit."""
