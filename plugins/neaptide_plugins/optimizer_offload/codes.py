"""State as int8 codes: signed values linearly, those without a sign by their logarithm.

In a tensor without negative elements nothing becomes zero that was not: what divides by its root
still can.
"""

from __future__ import annotations

import attrs
import torch

from neaptide.run.resident.storages import is_dense
from neaptide_kernels.int8 import dequantize_int8, quantize_int8

_CODED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max
GROUP = 256
"""Neighbouring elements that share a scale."""
_ZERO = -1
"""The code of a zero among logarithms, whose own codes begin at 0."""


@attrs.frozen(eq=False)
class StateCodes:
    """One tensor's codes."""

    codes: torch.Tensor
    """int8 `[elements]`, in the order of memory."""
    scale: torch.Tensor
    """float32 `[groups]`: of values, or of logarithms to the base 2."""
    smallest: torch.Tensor | None
    """`[groups]`: the least magnitude that is not zero, where codes are of logarithms."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of codes and scales."""
        least = 0 if self.smallest is None else self.smallest.nbytes
        return self.codes.nbytes + self.scale.nbytes + least


def encodable(tensor: torch.Tensor) -> bool:
    """Return whether `encode` takes the tensor: floating, dense, of at least 2 bytes an element.

    What it holds is another question.
    """
    return tensor.dtype in _CODED and is_dense(tensor)


@torch.no_grad()
def encode(tensor: torch.Tensor) -> StateCodes | None:
    """Return the codes of a tensor that `encodable` accepts; None where an element is inf or NaN.

    And where signed ones are larger than float32 can tell. Waits for the device to know.
    """
    flat = _in_memory_order(tensor)
    if not flat.numel():
        return None
    low, high = (float(extreme) for extreme in torch.aminmax(flat))
    if not -_LARGEST <= low <= high <= (_LARGEST if low < 0 else torch.finfo(flat.dtype).max):
        return None
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    if low < 0:
        codes, scale, _ = quantize_int8(flat, GROUP)
        return StateCodes(codes, scale, None, tensor.dtype, shape, strides)
    return StateCodes(*_logarithmic(flat), tensor.dtype, shape, strides)


@torch.no_grad()
def decode(encoded: StateCodes) -> torch.Tensor:
    """Return the values in a new tensor with the shape, strides and dtype of the one encoded."""
    wide = torch.promote_types(encoded.dtype, torch.float32)
    if encoded.smallest is None:
        values = dequantize_int8(encoded.codes, encoded.scale, None, GROUP, wide)
    else:
        values = _powers(encoded.codes, encoded.scale, encoded.smallest.to(wide))
    largest = torch.finfo(encoded.dtype).max  # which rounding may pass
    decoded: torch.Tensor = values.clamp_(-largest, largest).to(encoded.dtype)
    return decoded.as_strided(encoded.shape, encoded.strides)


def _logarithmic(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    is_zero = flat == 0
    wide = torch.promote_types(flat.dtype, torch.float32)
    rows = _rows(flat.to(wide).log2().masked_fill_(is_zero, torch.inf), torch.inf)
    least, where = rows.min(1)
    firsts = torch.arange(0, flat.numel(), GROUP, device=flat.device)
    smallest = flat[(firsts + where).clamp_(max=flat.numel() - 1)]  # 0 of a group of zeros
    heights = rows.sub_(least[:, None]).view(-1)[: flat.numel()].masked_fill_(is_zero, 0)
    codes, scale, _ = quantize_int8(heights.float(), GROUP)
    return codes.masked_fill_(is_zero, _ZERO), scale, smallest


def _powers(codes: torch.Tensor, scale: torch.Tensor, smallest: torch.Tensor) -> torch.Tensor:
    """Return what codes of logarithms stand for, in the dtype of `smallest`."""
    heights = dequantize_int8(codes, scale, None, GROUP, torch.float32).to(smallest.dtype)
    rows = _rows(heights, 0.0).add_(smallest.log2()[:, None]).exp2_()
    # A device may flush what is denormal to zero.
    rows.clamp_(min=smallest[:, None])
    return rows.view(-1)[: codes.numel()].masked_fill_(codes == _ZERO, 0)


def _rows(flat: torch.Tensor, filling: float) -> torch.Tensor:
    missing = -flat.numel() % GROUP
    padded = torch.nn.functional.pad(flat, (0, missing), value=filling) if missing else flat
    return padded.view(-1, GROUP)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))
