"""A refuge (a place for evicted tensors) that keeps state as int8 codes on the device."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import attrs
import torch

from neaptide.devices import widest
from neaptide_toolkit.offload import tensors_in

from .accounting import Room
from .codes import StateCodes, coded_bytes, decode, encodable, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Container, Iterator, Mapping

    from neaptide import ParameterStore, Span
    from neaptide.api.spans import SharedStorage

_ROUNDED = 16
"""Two computations of the same value may differ by this many units in the last place."""


@attrs.frozen(eq=False)
class _Coded:
    """A tensor and its codes. The tensor shares its storage with no other tensor."""

    tensor: torch.Tensor
    codes: StateCodes


class CompressedState:
    """A refuge that stores evicted state as int8 codes on the device.

    The tensors stay the same objects and are empty until the codes are decoded.
    """

    readable = False

    def __init__(self) -> None:
        self.left: Mapping[str, int] = {}
        """Bytes that the last eviction could not evict, by reason."""
        self.note: str | None = None
        self.error: float | None = None
        """Relative error of the last coding: the norm of the error over the norm of the values."""
        self._coded: list[_Coded] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._end: Callable[[], None] | None = None

    @property
    def is_away(self) -> bool:
        """True if any state is stored as codes."""
        return bool(self._coded)

    def leave(self, store: ParameterStore, spans: Collection[Span]) -> None:
        """Make the store evict the state of `spans` into this refuge."""
        found = store.evictable(spans, of="state")
        left = Counter(found.left)
        alone = {id(t) for t in map(_only, found.storages) if t is not None}
        del found
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        for span in spans:
            with store.loan(span, "read", of="state") as state:
                pairs += _squares(state, alone)
        self._end = store.evict(spans, of="state", refuge=self)
        self._pairs = pairs if self.is_away else []
        self.left = +(left + Counter(self.left))

    @torch.no_grad()
    def take(self, storages: list[SharedStorage]) -> None:
        """Replace tensors by their codes, one tensor at a time to keep the extra memory small.

        A tensor is not replaced if it shares its storage, is not floating or has an inf or NaN.
        """
        assert not self.is_away, "it has left already"
        stays, norms = 0, []
        while storages:
            shared = storages.pop()  # the list would keep the memory of a coded tensor
            tensor = _only(shared)
            codes = None if tensor is None else encode(tensor)
            if tensor is None or codes is None:
                stays += shared.bytes
                continue
            norms.append(_norms(tensor, codes))
            self._coded.append(_Coded(tensor, codes))
            tensor.data = tensor.new_empty(0)
        self.left = {"not representable in int8": stays} if stays else {}
        if norms:
            gap, size = torch.linalg.vector_norm(torch.stack(norms), dim=0).tolist()
            self.error = gap / size if size else 0.0

    def begin(self) -> None:
        """Do nothing: the codes are on the device already, and `finish` decodes them."""

    @torch.no_grad()
    def give_back(self) -> None:
        """Decode all tensors. A call that fails can be repeated."""
        while self._coded:
            coded = self._coded[-1]
            if not coded.tensor.numel():  # else it was given new values
                coded.tensor.data = decode(coded.codes)
            self._coded.pop()
        for above, root in self._pairs:
            if above.shape == root.shape:
                floor = root.square().mul_(1 + _tolerance(root))
                above.copy_(torch.maximum(above, floor))
        self._pairs = []

    def finish(self) -> None:
        """Make the store end the eviction."""
        end = self._end or self.give_back  # `_end` is None after an interrupted `evict`
        end()
        self._end = None

    def close(self) -> None:
        """Do nothing: this refuge has no thread and keeps no memory."""

    def room(self, store: ParameterStore, spans: Collection[Span]) -> Room:
        """Return the bytes of the tensors that can be coded, and the bytes of the tensors' codes.

        The values are not read. Therefore tensors with an inf or NaN are counted, too.
        """
        found = store.evictable(spans, of="state")
        tensors = [tensor for tensor in map(_only, found.storages) if tensor is not None]
        codes = sum(map(coded_bytes, tensors))
        return Room(leaves=sum(each.nbytes for each in tensors), codes=codes)


def _only(shared: SharedStorage) -> torch.Tensor | None:
    """Return the storage's only tensor, or None.

    The result is None if the storage has several tensors, if the tensor does not fill the storage,
    or if the tensor cannot be coded.
    """
    tensor = shared.tensors[0]
    alone = len(shared.tensors) == 1 and tensor.nbytes == shared.bytes
    return tensor if alone and encodable(tensor) else None


def _squares(entry: object, coded: Container[int]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `(above, root)` for each pair of tensors with `above >= root ** 2` in all elements.

    Centred RMSprop computes the square root of `above - root ** 2`. Rounding must not make this
    difference negative.
    """
    tensors = [tensor for tensor in tensors_in(entry) if id(tensor) in coded]
    for above, root in permutations(tensors, 2):
        if (above.shape, above.dtype) == (root.shape, root.dtype):
            least = root.square().mul_(1 - _tolerance(root))
            if bool((above >= least).all()):
                yield above, root


def _tolerance(tensor: torch.Tensor) -> float:
    return _ROUNDED * torch.finfo(tensor.dtype).eps


def _norms(tensor: torch.Tensor, codes: StateCodes) -> torch.Tensor:
    """Return the norms of the error and of the values: `[2]`, in float64 if possible."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    gap = decode(codes).to(wide).sub_(tensor)
    norms = [torch.linalg.vector_norm(each, dtype=wide) for each in (gap, tensor)]
    return torch.stack(norms).to(widest(tensor.device))
