"""The norms in plain torch: the operations of the eager modules and of autograd, in their order.

Therefore the results have the bits of the eager modules. Only what is kept differs: the backward
computes again what eager modules keep from the forward. On a CPU, a few rows at a time are
computed, so that temporary tensors stay in the caches; this changes no bits.
"""

from __future__ import annotations

from functools import cache

import torch

from neaptide_kernels.parts import row_parts

from .reference import precise, shifted


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    offset: float = 0.0,
    narrow_first: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rms_norm` with two float32 tensors of the size of some rows (on a GPU, of all rows)."""
    kind, width = precise(x.dtype), x.shape[-1]
    dtype = x.dtype
    if weight is not None and narrow_first:
        dtype = torch.promote_types(dtype, weight.dtype)
    elif weight is not None:
        weight = shifted(weight, offset, kind)
    y, rstds = x.new_empty(x.shape, dtype=dtype), x.new_empty(x.shape[:-1], dtype=kind)
    flat, written, each = x.reshape(-1, width), y.view(-1, width), rstds.view(-1, 1)
    room = _RowBuffers(x, 2)
    for part in row_parts(rstds, width):
        buffer, wide = room.of(part, kind)
        wide = _as(flat[part], wide)
        torch.mul(wide, wide, out=buffer)
        rstd = torch.mean(buffer, -1, keepdim=True, out=each[part]).add_(eps).rsqrt_()
        if weight is None:
            written[part] = torch.mul(wide, rstd, out=buffer)
        elif dtype == kind:
            torch.mul(wide, rstd, out=written[part]).mul_(weight)
        elif narrow_first:
            written[part] = torch.mul(wide, rstd, out=buffer)
            written[part].mul_(weight)
        else:
            written[part] = torch.mul(wide, rstd, out=buffer).mul_(weight)
    return y, rstds


def rms_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    rstd: torch.Tensor,
    offset: float = 0.0,
    narrow_first: bool = False,
    for_weight: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rms_norm_backward`; the weight needs a product like `gradient`, all rows at once."""
    kind, width = precise(x.dtype), x.shape[-1]
    factor = weight
    if weight is not None and not narrow_first:
        factor = shifted(weight, offset, kind)
    of_x, of_weight = x.new_empty(x.shape), x.new_empty(0)
    products = None
    if weight is not None and for_weight:
        wide = torch.promote_types(gradient.dtype, x.dtype) if narrow_first else kind
        products = x.new_empty(x.shape, dtype=wide).view(-1, width)
    given, flat, written = gradient.reshape(-1, width), x.reshape(-1, width), of_x.view(-1, width)
    rows, room = rstd.reshape(-1, 1), _RowBuffers(x, 3)
    for part in row_parts(rstd, width):
        buffer, wide_x, of_normal = room.of(part, kind)
        wide_x, each, slope = _as(flat[part], wide_x), rows[part], given[part]
        if products is not None:
            torch.mul(wide_x, each, out=buffer)
            normal = buffer.to(x.dtype) if narrow_first else buffer
            torch.mul(slope, normal, out=products[part])
        if factor is None:
            of_normal.copy_(slope)
        else:  # rounded to the wider dtype of both, as by a product without `out`
            torch.mul(slope, factor, out=of_normal)
            if narrow_first and slope.dtype != x.dtype:
                of_normal.copy_(of_normal.to(x.dtype))
        # As autograd differentiates mean, rsqrt and pow.
        of_rstd = torch.mul(of_normal, wide_x, out=buffer).sum(-1, keepdim=True)
        of_mean = of_rstd.mul_(-0.5).mul_(each.pow(3)).div_(width)
        torch.mul(wide_x, 2, out=buffer).mul_(of_mean)
        written[part] = of_normal.mul_(each).add_(buffer)
    if products is not None and weight is not None:
        of_weight = products.view(x.shape).sum_to_size(weight.shape).to(weight.dtype)
    return of_x, of_weight


class _RowBuffers:
    """Temporary tensors of the size of the first slice of rows; every slice overwrites them."""

    def __init__(self, x: torch.Tensor, count: int) -> None:
        self._x, self._count = x, count
        self._made: torch.Tensor | None = None

    def of(self, part: slice, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Return tensors `[rows of the slice, d]`."""
        rows = part.stop - part.start
        if self._made is None:
            self._made = self._x.new_empty((self._count, rows, self._x.shape[-1]), dtype=dtype)
        return self._made[:, :rows].unbind()


def _as(x: torch.Tensor, room: torch.Tensor) -> torch.Tensor:
    """Return `x` in the dtype of `room`, and in its memory if the dtypes differ."""
    return x if x.dtype == room.dtype else room.copy_(x)


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `layer_norm` by torch's own kernel."""
    y, mean, rstd = torch.native_layer_norm(x, x.shape[-1:], weight, bias, eps)
    kind = precise(x.dtype)
    return y.contiguous(), mean.squeeze(-1).to(kind), rstd.squeeze(-1).to(kind)


def layer_norm_backward(
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor | None,
    mean: torch.Tensor,
    rstd: torch.Tensor,
    for_weight: bool = True,
    for_bias: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `layer_norm_backward` by torch's own kernel."""
    kind = _kind_of_means(x.device, x.dtype, None if weight is None else weight.dtype)
    mean, rstd = mean.to(kind), rstd.to(kind)
    has = weight is not None
    of_x, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, x, x.shape[-1:], mean.unsqueeze(-1), rstd.unsqueeze(-1), weight, weight,
        [True, has and for_weight, has and for_bias],
    )  # fmt: skip
    return (
        of_x.contiguous(),
        of_weight if has and for_weight else x.new_empty(0),
        of_bias if has and for_bias else x.new_empty(0),
    )


@cache
def _kind_of_means(
    device: torch.device, dtype: torch.dtype, weight: torch.dtype | None
) -> torch.dtype:
    """Return the dtype in which torch's kernel returns means, and takes them back.

    On a CPU this is the weight's, on a GPU float32.
    """
    x = torch.zeros(1, 1, device=device, dtype=dtype)
    ones = None if weight is None else torch.ones(1, device=device, dtype=weight)
    return torch.native_layer_norm(x, (1,), ones, ones, 1e-5)[2].dtype
