"""How a weight becomes int8 codes: what shares a scale, and what range the codes span."""

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
"""Of weights that are quantized; the codes say too little of a float64."""


@attrs.frozen
class Scheme:
    """What shares a scale, and whether codes are centred on zero.

    Symmetric codes lie in [-127, 127]; affine ones in [-128, 127], with a zero point beside each
    scale.
    """

    granularity: Granularity
    block: int
    """Elements in a block; only with that granularity."""
    symmetric: bool

    @classmethod
    def of(cls, config: Int8Config) -> Scheme:
        """Return the scheme of the settings."""
        return cls(config.granularity, config.block, config.symmetric)

    def group(self, shape: torch.Size, channel: int) -> int:
        """Return how many consecutive elements share a scale, `channel` being the first dim.

        ValueError where blocks do not divide a channel.
        """
        elements = shape.numel()
        row = elements // max(1, shape[channel])
        if self.granularity == "tensor":
            return max(1, elements)
        if self.granularity == "channel":
            return max(1, row)
        if row % self.block:
            msg = f"blocks of {self.block} do not divide its channels of {row} elements"
            raise ValueError(msg)
        return self.block


@attrs.frozen(eq=False)
class Ranges:
    """The least and greatest value of each group that is not clipped: float32 `[groups]`."""

    low: torch.Tensor
    high: torch.Tensor

    def clip(self, values: torch.Tensor, group: int) -> torch.Tensor:
        """Return `values`, whose flattened order makes the groups, with outliers at the limits."""
        rows = in_groups(values, group).float()
        low, high = (limit.to(values.device)[:, None] for limit in (self.low, self.high))
        clipped = torch.where(rows.isfinite(), torch.minimum(torch.maximum(rows, low), high), rows)
        return clipped.view(-1)[: values.numel()].view(values.shape)

    def scaled(self, share: torch.Tensor | float) -> Ranges:
        """Return ranges of a share of the size."""
        return Ranges(self.low * share, self.high * share)


@attrs.frozen(eq=False)
class WeightCodes:
    """A quantized weight: `(codes - zero) * scale`, with the channels moved to dim 0."""

    codes: torch.Tensor
    """int8, contiguous."""
    scale: torch.Tensor
    """float32 `[groups]`."""
    zero: torch.Tensor | None
    """int8 `[groups]`; None where symmetric."""
    group: int
    channel: int

    @property
    def bytes(self) -> int:
        """Bytes of codes, scales and zero points."""
        zero = 0 if self.zero is None else self.zero.nbytes
        return self.codes.nbytes + self.scale.nbytes + zero

    def to(self, device: torch.device) -> WeightCodes:
        """Return them on `device`."""
        zero = None if self.zero is None else self.zero.to(device, non_blocking=True)
        return attrs.evolve(
            self,
            codes=self.codes.to(device, non_blocking=True),
            scale=self.scale.to(device, non_blocking=True),
            zero=zero,
        )

    def decode(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the weight they stand for, in `dtype`, in the shape it had."""
        values: torch.Tensor = dequantize_int8(self.codes, self.scale, self.zero, self.group, dtype)
        return values.movedim(0, self.channel)


def encode(
    weight: torch.Tensor, scheme: Scheme, channel: int = 0, ranges: Ranges | None = None
) -> WeightCodes:
    """Quantize `weight`, a floating tensor of any shape, rounding to nearest.

    Args:
        weight: is left as it is.
        scheme: what shares a scale.
        channel: the dim of output channels.
        ranges: clip to these first; left out, each group's own extremes are its range.
    """
    group = scheme.group(weight.shape, channel)
    values = weight.detach().movedim(channel, 0).contiguous()
    if ranges is not None:
        values = ranges.clip(values, group)
    codes, scale, zero = quantize_int8(values, group, not scheme.symmetric)
    return WeightCodes(codes, scale, None if scheme.symmetric else zero, group, channel)


def bytes_of(shape: torch.Size, scheme: Scheme, channel: int = 0) -> int:
    """Return what `encode` makes of a weight of `shape`, in bytes, without one."""
    elements = shape.numel()
    groups = -(-elements // scheme.group(shape, channel))
    return elements + groups * (4 if scheme.symmetric else 5)
