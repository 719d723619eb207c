"""The types of a ParameterStore: parts of parameters, callbacks, snapshots, eviction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import attrs
import torch

from neaptide.renamed import missing_in
from neaptide.text import brief, one_line

if TYPE_CHECKING:
    from .memory import Tier

Mode = Literal["read", "write"]

Of = Literal["weight", "gradient", "state"]
"""The part of a span that `loan` lends: `"state"` is a dict, the other parts are tensors."""

TensorOf = Literal["weight", "gradient"]
"""The part of a span that is lent as a tensor."""

Leaves = Literal["weight", "state"]
"""The part of a span that can be evicted."""


@attrs.frozen(eq=False)
class Span:
    """A parameter or a slice of a parameter. The store moves a span as a whole."""

    name: str
    """Qualified name in the module; the first name of a tied parameter."""
    shape: tuple[int, ...]
    dtype: torch.dtype
    tier: Tier
    trainable: bool
    tied: tuple[str, ...] = ()
    """The other names of a tied parameter."""

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", frozen"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Span({brief(self.name)}, {dtype}{list(self.shape)}, {self.tier}{frozen})"

    @property
    def bytes(self) -> int:
        """Bytes of the weights, without gradients and optimizer state."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


OnUpdate = Callable[[Span, torch.Tensor, "torch.Tensor | None"], None]
"""`callback(span, weight, delta)`: `weight` is the new value, valid only during the call.

`delta` is the tensor that a jump added to `weight`, or None after an ordinary update."""

OnUpdates = Callable[[list[Span], list[torch.Tensor], "list[torch.Tensor | None]"], None]
"""Like `OnUpdate`, with lists for several spans. The weights have one dtype and one device."""

DeltaOf = Callable[[Span], "torch.Tensor | None"]
"""`delta(span)` returns the tensor that a predicted update adds, or None for no change."""

Change = Callable[[Span, torch.Tensor], "torch.Tensor | None"]
"""`change(span, weight)` returns the `delta` for the callbacks `OnUpdate`."""


@attrs.frozen(eq=False)
class Snapshot:
    """Bitwise copies of weights and, if requested, of optimizer state, for `restore`."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None
    __repr__ = one_line


class Keeper(Protocol):
    """Holds one weight in another form. This form may be less exact than the weight."""

    def read(self) -> torch.Tensor:
        """Return the weight, on the device, in the span's shape and dtype."""

    def write(self, weight: torch.Tensor) -> None:
        """Replace the weight. Writing the value that `read` returned changes no bit."""


@attrs.frozen(eq=False)
class SharedStorage:
    """A storage, and all the tensors that use it."""

    storage: torch.UntypedStorage = attrs.field(repr=False)
    tensors: tuple[torch.Tensor, ...]

    __repr__ = one_line

    @property
    def bytes(self) -> int:
        """Bytes of the storage; may be more than the sum of the bytes of `tensors`."""
        return self.storage.nbytes()


@attrs.frozen(eq=False)
class Evictable:
    """The storages that can be moved off the device, and the bytes that must stay on the device.

    The list `storages` keeps the memory alive. Delete the list before you measure freed memory.
    """

    storages: list[SharedStorage] = attrs.field(factory=list)
    left: Mapping[str, int] = attrs.field(factory=dict)
    """A dict from reasons to the bytes that must stay on the device for this reason."""

    __repr__ = one_line

    @property
    def bytes(self) -> int:
        """Bytes that can be moved off the device."""
        return sum(shared.bytes for shared in self.storages)


class Refuge(Protocol):
    """Holds evicted tensors off the device.

    The tensor objects stay the same. Tensors that shared a storage share a storage again after
    `give_back`. A call that raised can be repeated.
    """

    readable: bool
    """True if evicted tensors can be read on the host."""

    def take(self, storages: list[SharedStorage]) -> None:
        """Evict as many storages as this refuge can hold. If it raises, no storage was evicted.

        The list keeps the device memory alive: remove each moved storage from the list.
        """

    def give_back(self) -> None:
        """Move the tensors back to the device, with their present values."""


if not TYPE_CHECKING:  # so that type checkers report unknown names
    __getattr__ = missing_in(__name__)
