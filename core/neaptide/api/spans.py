"""The values a ParameterStore works with: spans, loans' modes, callbacks, snapshots, refuges."""

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
"""What of a span is lent: one tensor, or with `"state"` the optimizer's state of it, a dict."""

Leaves = Literal["weight", "state"]
"""What of a span can be evicted."""


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

    def __repr__(self) -> str:
        frozen = "" if self.trainable else ", frozen"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"Span({brief(self.name)}, {dtype}{list(self.shape)}, {self.tier}{frozen})"

    @property
    def bytes(self) -> int:
        """Bytes of the weights alone."""
        return torch.Size(self.shape).numel() * self.dtype.itemsize


OnUpdate = Callable[[Span, torch.Tensor, "torch.Tensor | None"], None]
"""`callback(span, weight, delta)`: `weight` is the new value, valid inside the call only.

`delta` is what a jump added to it, or None after an ordinary update."""

DeltaOf = Callable[[Span], "torch.Tensor | None"]
"""Returns what a predicted update adds to a span."""

Change = Callable[[Span, torch.Tensor], "torch.Tensor | None"]
"""`change(span, weight)` returns what a jump added to `weight`; None after an ordinary update."""


@attrs.frozen(eq=False)
class Snapshot:
    """Bitwise copies of weights (and of the optimizer's state) that `restore` puts back."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any] | None

    __repr__ = one_line


class Keeper(Protocol):
    """Holds one weight in a form of its own, which may lose some of what it is given."""

    def read(self) -> torch.Tensor:
        """Return the weight it holds, on the device, in the span's shape and dtype."""

    def write(self, weight: torch.Tensor) -> None:
        """Hold `weight` from now on. Writing what was read changes nothing, bit for bit."""


@attrs.frozen(eq=False)
class SharedStorage:
    """A storage, and the tensors that lie in it; nothing else does."""

    storage: torch.UntypedStorage = attrs.field(repr=False)
    tensors: tuple[torch.Tensor, ...]

    __repr__ = one_line

    @property
    def bytes(self) -> int:
        """Bytes of the storage, which may be more than those of the tensors."""
        return self.storage.nbytes()


@attrs.frozen(eq=False)
class Evictable:
    """What can leave the device, and what has to stay.

    `storages` keeps memory alive: drop it before you ask what was freed.
    """

    storages: list[SharedStorage] = attrs.field(factory=list)
    left: Mapping[str, int] = attrs.field(factory=dict)
    """Bytes that stay, by the reason."""

    __repr__ = one_line

    @property
    def bytes(self) -> int:
        """Bytes that can leave."""
        return sum(shared.bytes for shared in self.storages)


class Refuge(Protocol):
    """Holds evicted tensors off the device.

    They stay the same objects, and those that shared a storage share one again when they are back.
    What fails or is interrupted can be called again.
    """

    readable: bool
    """Whether the tensors show their values, on the host, while they are away."""

    def take(self, storages: list[SharedStorage]) -> None:
        """Free the device of `storages`, of those at least that it can hold; of none if it raises.

        Each of them keeps its memory: take them off the list to free it one by one.
        """

    def give_back(self) -> None:
        """Have the tensors on the device again, with the values they have now."""


if not TYPE_CHECKING:  # where it would hide what is missing
    __getattr__ = missing_in(__name__)
