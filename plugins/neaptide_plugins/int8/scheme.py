"""Encodes a weight as int8 codes. Groups of elements share a scale and a range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs
import torch

from neaptide_kernels.int8 import dequantize_int8, quantize_int8
from neaptide_kernels.int8.reference import in_groups

if TYPE_CHECKING:
    from .config import Int8Config

Granularity = Literal["tensor", "channel", "block"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of weights that can be quantized. For float64 weights the codes are too coarse."""


@attrs.frozen
class Scheme:
    """The size of the groups that share a scale, and whether codes are centred on zero.

    Symmetric codes are in [-127, 127]. Affine codes are in [-128, 127], and each scale has a zero
    point.
    """

    granularity: Granularity
    block: int
    """Number of elements in a block. Only the granularity `block` uses this number."""
    symmetric: bool

    @classmethod
    def of(cls, config: Int8Config) -> Scheme:
        """Return the scheme that the settings describe."""
        return cls(config.granularity, config.block, config.symmetric)

    def group(self, shape: torch.Size, channel: int) -> int:
        """Return how many consecutive elements share a scale when `channel` is moved to dim 0.

        ValueError if the size of a channel is not a multiple of the block size.
        """
        elements = shape.numel()
        row = elements // max(1, shape[channel])
        if self.granularity == "tensor":
            return max(1, elements)
        if self.granularity == "channel":
            return max(1, row)
        if row % self.block:
            msg = f"its channels of {row} elements are not a multiple of the block of {self.block}"
            raise ValueError(msg)
        return self.block


@attrs.frozen(eq=False)
class Ranges:
    """The limits to which each group's values are clipped: float32 `[groups]`."""

    low: torch.Tensor
    high: torch.Tensor

    def clip(self, values: torch.Tensor, group: int) -> torch.Tensor:
        """Return `values` clipped to the limits; `group` consecutive elements form a group."""
        rows = in_groups(values, group).float()
        low, high = (limit.to(values.device)[:, None] for limit in (self.low, self.high))
        clipped = torch.where(rows.isfinite(), torch.minimum(torch.maximum(rows, low), high), rows)
        return clipped.view(-1)[: values.numel()].view(values.shape)

    def scaled(self, share: torch.Tensor | float) -> Ranges:
        """Return the ranges multiplied by `share`."""
        return Ranges(self.low * share, self.high * share)


@attrs.frozen(eq=False)
class WeightCodes:
    """A quantized weight: `(codes - zero) * scale`, with the channels moved to dim 0."""

    codes: torch.Tensor
    """int8, contiguous."""
    scale: torch.Tensor
    """float32 `[groups]`."""
    zero: torch.Tensor | None
    """int8 `[groups]`; None if the scheme is symmetric."""
    group: int
    channel: int

    @property
    def bytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        zero = 0 if self.zero is None else self.zero.nbytes
        return self.codes.nbytes + self.scale.nbytes + zero

    def to(self, device: torch.device) -> WeightCodes:
        """Return the codes on `device`."""
        zero = None if self.zero is None else self.zero.to(device, non_blocking=True)
        return attrs.evolve(
            self,
            codes=self.codes.to(device, non_blocking=True),
            scale=self.scale.to(device, non_blocking=True),
            zero=zero,
        )

    def decode(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the decoded weight in `dtype` and its original shape."""
        values: torch.Tensor = dequantize_int8(self.codes, self.scale, self.zero, self.group, dtype)
        return values.movedim(0, self.channel)


def encode(
    weight: torch.Tensor, scheme: Scheme, channel: int = 0, ranges: Ranges | None = None
) -> WeightCodes:
    """Quantize `weight`, a floating tensor of any shape, rounding to nearest.

    Args:
        weight: the tensor; it is not changed.
        scheme: defines the groups.
        channel: the dim of output channels.
        ranges: limits to which the values are clipped before the encoding. None: the values are
            not clipped.
    """
    group = scheme.group(weight.shape, channel)
    values = weight.detach().movedim(channel, 0).contiguous()
    if ranges is not None:
        values = ranges.clip(values, group)
    codes, scale, zero = quantize_int8(values, group, not scheme.symmetric)
    return WeightCodes(codes, scale, None if scheme.symmetric else zero, group, channel)


def bytes_of(shape: torch.Size, scheme: Scheme, channel: int = 0) -> int:
    """Return the bytes of the codes, scales and zero points of a weight of `shape`."""
    elements = shape.numel()
    groups = -(-elements // scheme.group(shape, channel))
    return elements + groups * (4 if scheme.symmetric else 5)
