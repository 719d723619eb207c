"""Encodes a flat tensor as int8 codes with one scale per group.

The error `|decoded - value|` is at most `max / 254` plus the error of rounding to the dtype. Here
max is the largest magnitude of the group. A group whose magnitudes are all below 2**-120 is decoded
as zeros. If the elements of a tensor have only two values, the tensor is encoded exactly, with one
bit per element.
"""

from __future__ import annotations

import attrs
import torch

from neaptide_kernels.int8 import dequantize_int8, quantize_int8

_MINUS_INFINITY = -128
"""Code of minus infinity; attention masks contain this value. All other codes are larger."""
_TINY = -1
"""Code of a positive value that rounds to zero, in a tensor without negative values."""
_LARGEST_SCALE = torch.finfo(torch.float32).max / 127 * (1 - 2.0**-23)
"""Largest scale whose product with 127 is finite."""


@attrs.frozen(eq=False)
class ActivationCodes:
    """int8 codes `[N]` and float32 scales `[ceil(N / group)]` of a flat floating tensor."""

    codes: torch.Tensor
    scale: torch.Tensor
    group: int
    dtype: torch.dtype
    marks_infinity: bool
    never_negative: bool

    @property
    def nbytes(self) -> int:
        """Bytes of the codes and the scales."""
        return self.codes.nbytes + self.scale.nbytes


def encode(
    flat: torch.Tensor, group: int, *, look: bool, never_negative: bool = False
) -> ActivationCodes | None:
    """Encode a float32, bfloat16 or float16 tensor `[N]` in groups of `group`.

    Args:
        flat: the tensor. Minus infinity is decoded as minus infinity and does not change the other
            elements of its group.
        group: number of neighbouring elements that share a scale.
        look: whether to check the scales on the host. This check waits for the device. If True,
            return None for a tensor with NaN or plus infinity. If False, every group that contains
            NaN or plus infinity is decoded as NaN.
        never_negative: whether the tensor has no negative values. The function `positive` is
            exact only for the codes of such a tensor.
    """
    codes, scale = None, None
    if look:
        codes, scale, _ = quantize_int8(flat, group)
    infinite = scale is None or bool(scale.isnan().any())
    if codes is None or scale is None or infinite:
        lowest = flat == -torch.inf
        codes, scale, _ = quantize_int8(flat.masked_fill(lowest, 0), group)
        if look and bool(scale.isnan().any()):
            return None
        codes.masked_fill_(lowest, _MINUS_INFINITY)
    if never_negative:
        codes.masked_fill_((codes == 0) & (flat <= 0).logical_not(), _TINY)
    scale.clamp_(max=_LARGEST_SCALE)
    return ActivationCodes(codes, scale, group, flat.dtype, infinite, never_negative)


def decode(encoded: ActivationCodes) -> torch.Tensor:
    """Return the decoded values `[N]` in the original dtype."""
    codes = encoded.codes
    if encoded.never_negative:
        codes = codes.masked_fill(codes == _TINY, 0)
    flat: torch.Tensor = dequantize_int8(codes, encoded.scale, None, encoded.group, encoded.dtype)
    if encoded.marks_infinity:
        flat.masked_fill_(codes == _MINUS_INFINITY, -torch.inf)
    return flat


def positive(encoded: ActivationCodes) -> torch.Tensor:
    """Return 1 where the encoded value is positive, else 0. Needs `never_negative` in `encode`."""
    return (encoded.codes != 0).to(encoded.dtype)


def with_signs(flat: torch.Tensor, signs: Bits) -> torch.Tensor:
    """Write a tiny positive number into `flat` where a positive value was decoded as zero."""
    lost = decode_bits(attrs.evolve(signs, dtype=torch.bool)).logical_and_(flat <= 0)
    return flat.masked_fill_(lost, 2.0**-24 if flat.dtype is torch.float16 else 2.0**-126)


@attrs.frozen(eq=False)
class Bits:
    """A flat tensor stored as one bit per element: `value` if the bit is set, else `other`."""

    bits: torch.Tensor
    elements: int
    dtype: torch.dtype
    value: float = 1.0
    other: float = 0.0


def encode_mask(flat: torch.Tensor) -> Bits | None:
    """Encode exactly a bool tensor, or a tensor of zeros and one other value (a dropout mask).

    Return None for any other tensor. A floating tensor must be on the host, because the function
    reads all values.
    """
    if flat.dtype is torch.bool:
        return _packed(flat, flat.dtype)
    value = flat.max()
    zeros = (flat == 0) & ~flat.signbit()
    chosen = flat == value if value else zeros
    if not bool((chosen | zeros).all()):
        return None
    return _packed(chosen, flat.dtype, float(value))


def encode_signs(flat: torch.Tensor) -> Bits:
    """Encode positive values and NaN as 1, all other values as 0."""
    return _packed((flat <= 0).logical_not(), flat.dtype)


def encode_between(flat: torch.Tensor, low: float, high: float) -> Bits:
    """Encode values between `low` and `high` as the midpoint, and all other values as `high`."""
    inside = ((flat <= low) | (flat >= high)).logical_not()
    return _packed(inside, flat.dtype, (low + high) / 2, high)


def decode_bits(encoded: Bits) -> torch.Tensor:
    """Return the decoded values `[elements]` in the original dtype."""
    places = torch.arange(8, device=encoded.bits.device, dtype=torch.uint8)
    spread = encoded.bits[:, None].bitwise_right_shift(places).bitwise_and_(1)
    chosen = spread.view(-1)[: encoded.elements]
    if encoded.other == 0.0 and encoded.value == 1.0:
        return chosen.to(encoded.dtype)
    flat = torch.full_like(chosen, encoded.other, dtype=encoded.dtype)
    return flat.masked_fill_(chosen.bool(), encoded.value)


def _packed(
    chosen: torch.Tensor, dtype: torch.dtype, value: float = 1.0, other: float = 0.0
) -> Bits:
    elements = chosen.numel()
    rows = torch.nn.functional.pad(chosen, (0, -elements % 8)).view(-1, 8)
    places = 2 ** torch.arange(8, device=chosen.device, dtype=torch.uint8)
    return Bits((rows * places).sum(1, dtype=torch.uint8), elements, dtype, value, other)
