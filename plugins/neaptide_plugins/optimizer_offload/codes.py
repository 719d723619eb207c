"""Optimizer state as int8 codes.

Codes are linear for tensors with negative elements, and logarithmic for other tensors. With
logarithmic codes positive elements stay positive, so an update can divide by their root.
"""

from __future__ import annotations

import attrs
import torch

from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_toolkit.offload.storages import is_dense

_CODED = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_LARGEST = torch.finfo(torch.float32).max
GROUP = 256
"""Number of neighbouring elements that share a scale."""
_ZERO = -1
"""The code for zero in a tensor with logarithmic codes. All other codes are 0 or more."""


@attrs.frozen(eq=False)
class StateCodes:
    """The int8 codes of one tensor."""

    codes: torch.Tensor
    """int8 `[elements]`, in the order of the elements in memory."""
    scale: torch.Tensor
    """float32 `[groups]`: the scale of the values or, with logarithmic codes, of their log2."""
    smallest: torch.Tensor | None
    """`[groups]`: the least nonzero value of each group; None with linear codes."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Bytes of `codes`, `scale` and `smallest`."""
        least = 0 if self.smallest is None else self.smallest.nbytes
        return self.codes.nbytes + self.scale.nbytes + least


def encodable(tensor: torch.Tensor) -> bool:
    """Return whether `encode` accepts the tensor.

    The tensor must be floating and dense, with at least 2 bytes per element.

    The elements are not read, so `encode` may still return None for the tensor.
    """
    return tensor.dtype in _CODED and is_dense(tensor)


def coded_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the codes and scales of a tensor that `encodable` accepts."""
    return tensor.numel() + 4 * -(-tensor.numel() // GROUP)


@torch.no_grad()
def encode(tensor: torch.Tensor) -> StateCodes | None:
    """Return the codes of a tensor that `encodable` accepts, or None for some values.

    The result is None for an empty tensor and for a tensor with an inf or NaN. If a tensor has
    negative elements, the result is also None if an element exceeds the range of float32. The call
    waits for the device.
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
    """Return the values in a new tensor with the original shape, strides and dtype."""
    wide = torch.promote_types(encoded.dtype, torch.float32)
    if encoded.smallest is None:
        values = dequantize_int8(encoded.codes, encoded.scale, None, GROUP, wide)
    else:
        values = _powers(encoded.codes, encoded.scale, encoded.smallest.to(wide))
    largest = torch.finfo(encoded.dtype).max  # Rounding may exceed this limit.
    decoded: torch.Tensor = values.clamp_(-largest, largest).to(encoded.dtype)
    return decoded.as_strided(encoded.shape, encoded.strides)


def _logarithmic(flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    is_zero = flat == 0
    wide = torch.promote_types(flat.dtype, torch.float32)
    rows = _rows(flat.to(wide).log2().masked_fill_(is_zero, torch.inf), torch.inf)
    least, where = rows.min(1)
    firsts = torch.arange(0, flat.numel(), GROUP, device=flat.device)
    smallest = flat[(firsts + where).clamp_(max=flat.numel() - 1)]  # 0 for a group of zeros
    heights = rows.sub_(least[:, None]).view(-1)[: flat.numel()].masked_fill_(is_zero, 0)
    codes, scale, _ = quantize_int8(heights.float(), GROUP)
    return codes.masked_fill_(is_zero, _ZERO), scale, smallest


def _powers(codes: torch.Tensor, scale: torch.Tensor, smallest: torch.Tensor) -> torch.Tensor:
    """Return the values of logarithmic codes, in the dtype of `smallest`."""
    heights = dequantize_int8(codes, scale, None, GROUP, torch.float32).to(smallest.dtype)
    rows = _rows(heights, 0.0).add_(smallest.log2()[:, None]).exp2_()
    # Some devices flush denormal numbers to zero.
    rows.clamp_(min=smallest[:, None])
    return rows.view(-1)[: codes.numel()].masked_fill_(codes == _ZERO, 0)


def _rows(flat: torch.Tensor, filling: float) -> torch.Tensor:
    missing = -flat.numel() % GROUP
    padded = torch.nn.functional.pad(flat, (0, missing), value=filling) if missing else flat
    return padded.view(-1, GROUP)


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().as_strided((tensor.numel(),), (1,))
