"""What the graph holds in place of saved tensors, and gives back in the backward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs
import torch

from .codes import Bits, Codes, decode, decode_bits, encode, encode_mask, encode_signs, positive

if TYPE_CHECKING:
    from .layout import Layout
    from .ops import Form


@attrs.define(eq=False)
class Kept:
    """A tensor as it was saved."""

    tensor: torch.Tensor
    version: int

    def unpack(self) -> torch.Tensor:
        """Return the tensor; RuntimeError if it was changed in place since."""
        _check_version(self.tensor, self.version, self.tensor.shape)
        return self.tensor


@attrs.define(eq=False)
class Block:
    """A stretch of memory that was saved, perhaps several times and in several shapes."""

    tensor: torch.Tensor
    """The memory itself until `forget`; after it no more than the counter of its changes."""
    version: int
    storage: Any
    """A weak reference: no other storage gets the address while it lives."""
    storage_bytes: int
    group: int
    exact: bool = True
    pinned: bool = False
    """Whether somebody needs it exactly: then all others get it so, too."""
    waiting: int = 0
    codes: Codes | None = None
    bits: Bits | None = None

    def settle(self, saved: Saved, form: Form, *, unsigned: bool = False) -> None:
        """Hold what `saved` needs, and the memory no longer if nobody does."""
        saved.form = form
        self.waiting -= 1
        if not self.pinned and form != "exact" and self.tensor._version == self.version:
            self._encode(saved.layout, form, unsigned=unsigned)
        else:
            self.pinned = True
        if self.pinned:
            self.codes = self.bits = None
        elif not self.waiting:
            self._forget()

    def finish(self) -> None:
        """Stop waiting for what part of a graph that is gone needed."""
        self.waiting = 0
        if self.exact and (self.codes or self.bits) is not None:
            self._forget()

    @torch.no_grad()
    def _encode(self, layout: Layout, form: Form, *, unsigned: bool) -> None:
        flat = layout.flat(self.tensor)
        if self.codes is None and (form == "codes" or unsigned):
            self.codes = encode(flat, self.group, never_negative=unsigned)
        if form == "signs" and self.bits is None and not unsigned:
            self.bits = encode_signs(flat)
        if form == "mask" and self.bits is None:
            self.bits = encode_mask(flat)
            self.pinned = self.bits is None

    def _forget(self) -> None:
        # Set so, a tensor keeps its counter, which it shares with all views of the memory.
        self.tensor.data = self.tensor.new_empty(0)
        self.exact = False

    @property
    def nbytes(self) -> int:
        """Bytes of codes and bits."""
        codes = 0 if self.codes is None else self.codes.nbytes
        return codes + (0 if self.bits is None else self.bits.bits.nbytes)


@attrs.define(eq=False)
class Saved:
    """One saving of a block."""

    block: Block
    layout: Layout
    producer: int | None
    """The number of the node that made it; None where none did."""
    form: Form = "exact"

    def unpack(self) -> torch.Tensor:
        """Return what was saved, or what stands for it; RuntimeError if it was changed since."""
        block, layout = self.block, self.layout
        _check_version(block.tensor, block.version, layout.size)
        if block.exact:
            return block.tensor.as_strided(layout.size, layout.stride, layout.offset)
        if self.form != "codes" and block.bits is not None:
            return layout.unflatten(decode_bits(block.bits))
        assert block.codes is not None, "memory is forgotten once it is encoded"
        flat = decode(block.codes) if self.form == "codes" else positive(block.codes)
        return layout.unflatten(flat)


def _check_version(tensor: torch.Tensor, version: int, shape: Any) -> None:
    if tensor._version != version:
        msg = (
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: a {tensor.dtype} tensor of shape {list(shape)} is at version "
            f"{tensor._version}; expected version {version} instead"
        )
        raise RuntimeError(msg)
