"""State as int8 codes on the device: how it becomes them, and what comes back."""

from __future__ import annotations

from collections import Counter
from itertools import permutations
from typing import TYPE_CHECKING

import attrs
import torch

from .codes import GROUP, Codes, decode, encodable, encode
from .state_tensors import Room, tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from .state_tensors import Shared, State

_ROUNDED = 16
"""Units in the last place by which what is computed from equals may differ."""


@attrs.frozen(eq=False)
class _Coded:
    """One storage whose only content is one tensor, and its codes."""

    tensor: torch.Tensor
    codes: Codes


class Compressed:
    """Keeps state as codes; the tensors stay the same objects, empty in the meantime."""

    def __init__(self) -> None:
        self.left: Mapping[str, int] = {}
        """Bytes that stayed the last time, by why."""
        self.note: str | None = None
        self.error: float | None = None
        """Relative error of the last coding: root of the summed squares over the values'."""
        self._coded: list[_Coded] = []
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    @property
    def is_away(self) -> bool:
        """Whether any state is coded."""
        return bool(self._coded or self._pairs)

    @torch.no_grad()
    def leave(self, state: State) -> None:
        """Replace what can be coded by its codes.

        One tensor after the other, so that what is allocated meanwhile is some copies of one. A
        tensor that shares its storage with others, is no float or holds inf or NaN stays.
        """
        assert not self.is_away, "it has left already"
        found = state.found()
        alone = {id(tensor): tensor for tensor in map(_only, found.storages) if tensor is not None}
        left = Counter(found.left)
        left["that int8 cannot stand for"] += found.bytes - sum(t.nbytes for t in alone.values())
        del found
        self._pairs = [pair for entry in state.entries for pair in _squares(entry, alone)]
        norms = []
        while alone:
            _, tensor = alone.popitem()
            codes = encode(tensor)
            if codes is None:
                left["that int8 cannot stand for"] += tensor.nbytes
                continue
            norms.append(_norms(tensor, codes))
            self._coded.append(_Coded(tensor, codes))
            tensor.data = tensor.new_empty(0)
        self.left = +left
        if norms:
            gap, size = torch.linalg.vector_norm(torch.stack(norms), dim=0).tolist()
            self.error = gap / size if size else 0.0

    def begin(self) -> None:
        """Do nothing: codes are on the device, and decoded when they are needed."""

    @torch.no_grad()
    def finish(self) -> None:
        """Decode everything. What fails or is interrupted can be called again."""
        while self._coded:
            coded = self._coded[-1]
            if not coded.tensor.numel():  # nobody has given it other values
                coded.tensor.data = decode(coded.codes)
            self._coded.pop()
        for above, root in self._pairs:
            if above.shape == root.shape:
                floor = root.square().mul_(1 + _tolerance(root))
                above.copy_(torch.maximum(above, floor))
        self._pairs = []

    def close(self) -> None:
        """Do nothing: no memory is kept."""

    def room(self, state: State) -> Room:
        """Return what would be coded, all of it taken to be finite, and its codes."""
        tensors = [tensor for tensor in map(_only, state.found().storages) if tensor is not None]
        codes = sum(each.numel() + 4 * -(-each.numel() // GROUP) for each in tensors)
        return Room(leaves=sum(each.nbytes for each in tensors), codes=codes)


def _only(shared: Shared) -> torch.Tensor | None:
    """Return the tensor that fills a storage alone and can be coded, if there is one."""
    tensor = shared.tensors[0]
    alone = len(shared.tensors) == 1 and tensor.nbytes == shared.bytes
    return tensor if alone and encodable(tensor) else None


def _squares(
    entry: object, coded: Mapping[int, torch.Tensor]
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield `(above, root)` wherever each element of one tensor is at least the other's square.

    An optimizer may take the root of the difference, as the centred RMSprop does.
    """
    tensors = [tensor for tensor in tensors_in(entry) if id(tensor) in coded]
    for above, root in permutations(tensors, 2):
        if (above.shape, above.dtype) == (root.shape, root.dtype):
            least = root.square().mul_(1 - _tolerance(root))
            if bool((above >= least).all()):
                yield above, root


def _tolerance(tensor: torch.Tensor) -> float:
    return _ROUNDED * torch.finfo(tensor.dtype).eps


def _norms(tensor: torch.Tensor, codes: Codes) -> torch.Tensor:
    """Return the norms of error and values: float64 `[2]`."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    gap = decode(codes).to(wide).sub_(tensor)
    norms = [torch.linalg.vector_norm(each, dtype=wide) for each in (gap, tensor)]
    return torch.stack(norms).double()
