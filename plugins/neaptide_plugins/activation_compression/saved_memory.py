"""The objects that the graph holds instead of saved tensors. The backward decodes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from .codes import (
    ActivationCodes,
    Bits,
    decode,
    decode_bits,
    encode,
    encode_between,
    encode_mask,
    encode_signs,
    positive,
    with_signs,
)
from .needs import BETWEEN, CODES, EXACT, MASK, RECTIFIED, SIGNED, SIGNS, Need

if TYPE_CHECKING:
    from .layout import StridedLayout


@attrs.define(eq=False)
class ExactTensor:
    """An uncompressed saved tensor."""

    tensor: torch.Tensor
    version: int

    def unpack(self) -> torch.Tensor:
        """Return the tensor; raise RuntimeError if it was changed in place after it was saved."""
        _check_version(self.tensor, self.version, self.tensor.shape)
        return self.tensor


@attrs.define(eq=False)
class SavedMemory:
    """A range of memory that saved tensors share; the tensors may have different shapes."""

    tensor: torch.Tensor
    """While `exact`, the memory itself; later an empty tensor with the same version counter."""
    version: int
    storage: Any
    """A weak reference to the storage, so that no other storage gets the same address."""
    storage_bytes: int
    group: int
    exact: bool = True
    pinned: bool = False
    """True if an operation needs the exact values. If so, all operations get the exact values."""
    waiting: int = 0
    """Number of `Saved` objects whose need is not known yet."""
    codes: ActivationCodes | None = None
    bits: dict[Need, Bits] = attrs.field(factory=dict)

    def settle(self, saved: Saved, need: Need) -> None:
        """Set the need of `saved` and encode its values; free the exact values if possible."""
        saved.need = need
        self.waiting -= 1
        if not self.pinned and need is not EXACT and self.tensor._version == self.version:
            self._encode(saved.layout, need)
        else:
            self.pinned = True
        if self.pinned:
            self.codes = None
            self.bits.clear()
        elif not self.waiting:
            self._forget()

    def finish(self) -> None:
        """Ignore the `Saved` objects whose need is still unknown; the graph does not hold them."""
        self.waiting = 0
        if self.exact and (self.codes or self.bits):
            self._forget()

    @torch.no_grad()
    def _encode(self, layout: StridedLayout, need: Need) -> None:
        flat = layout.flat(self.tensor)
        if self.codes is None and need in {CODES, RECTIFIED, SIGNED}:
            self.codes = encode(
                flat, self.group, look=flat.is_cpu, never_negative=need is RECTIFIED
            )
            self.pinned = self.codes is None
        if need in {SIGNS, SIGNED} and SIGNS not in self.bits:
            self.bits[SIGNS] = encode_signs(flat)
        if need.kind == BETWEEN and need not in self.bits:
            self.bits[need] = encode_between(flat, need.low, need.high)
        if need is MASK and MASK not in self.bits:
            mask = encode_mask(flat)
            self.pinned = mask is None
            if mask is not None:
                self.bits[MASK] = mask

    def _forget(self) -> None:
        # Assigning `.data` keeps the version counter, which all views of the memory share.
        self.tensor.data = self.tensor.new_empty(0)
        self.exact = False

    @property
    def nbytes(self) -> int:
        """Bytes of codes and bits."""
        codes = 0 if self.codes is None else self.codes.nbytes
        return codes + sum(bits.bits.nbytes for bits in self.bits.values())


@attrs.define(eq=False)
class Saved:
    """A saved tensor, stored in a `SavedMemory`."""

    memory: SavedMemory
    layout: StridedLayout
    producer: int | None
    """Sequence number of the node that made the tensor; None for a tensor without a node."""
    output: int
    """Index of the tensor among the results of the producing node."""
    need: Need = EXACT

    def unpack(self) -> torch.Tensor:
        """Return the tensor, exact or decoded; raise RuntimeError if it was changed in place."""
        memory, layout = self.memory, self.layout
        _check_version(memory.tensor, memory.version, layout.size)
        if memory.exact:
            return memory.tensor.as_strided(layout.size, layout.stride, layout.offset)
        return layout.unflatten(self._flat(memory))

    def _flat(self, memory: SavedMemory) -> torch.Tensor:
        need, codes = self.need, memory.codes
        if need not in {CODES, RECTIFIED, SIGNED}:
            return decode_bits(memory.bits[need])
        assert codes is not None, "memory is freed only after it is encoded"
        if need is RECTIFIED:
            return positive(codes)
        return decode(codes) if need is CODES else with_signs(decode(codes), memory.bits[SIGNS])


def _check_version(tensor: torch.Tensor, version: int, shape: Any) -> None:
    if tensor._version != version:
        msg = (
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {tensor.dtype} tensor of shape {list(shape)} is at version "
            f"{tensor._version}; expected version {version} instead"
        )
        raise RuntimeError(msg)
