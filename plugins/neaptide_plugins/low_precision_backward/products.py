"""Products of two matrices. Both factors are rounded to 8 bits."""

from __future__ import annotations

import attrs
import torch
from torch.nn import functional

from neaptide_kernels.int8 import quantize_int8
from neaptide_toolkit.low_precision import GRADIENT_DTYPE, fp8_product

EXACT_TERMS = 1 << 17
"""An int32 sum of this many products of int8 codes, each at most 127 * 127, cannot overflow."""

MULTIPLE = 16
"""The kernels accept sizes that are multiples of this number.

The inner dimension is padded with zeros.
"""

MIN_ROWS = 32
"""Least number of rows for CUDA's int8 kernel. The kernel needs more than 16 rows."""

WORKSPACE = 41
"""Bytes needed per element while torch operations round a tensor stochastically."""

SUMS = 8
"""Bytes needed per element of an int8 product: an int32 sum and its float32 copy."""


@attrs.define(eq=False)
class Seeds:
    """Seeds of stochastic rounding, derived from the run's seed and the number of seeds drawn."""

    run: int
    drawn: int = 0

    def draw(self) -> int:
        """Return the next seed, a number of 63 bits."""
        self.drawn += 1
        return ((self.run & 0x7FFFFFFF) << 32) | (self.drawn & 0xFFFFFFFF)


def int8_product(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, seeds: Seeds
) -> torch.Tensor:
    """Return `a @ b.T`, `[M, N]`.

    Both factors are rounded stochastically to int8, with a scale per row.

    The mean over many seeds is the exact product. Sums of codes are exact in int32; a product with
    K above `EXACT_TERMS` is computed in pieces with separate scales. If a row of a factor has an
    inf or NaN, all products of this row are NaN.

    Args:
        a: `[M, K]`, floating.
        b: `[N, K]`, floating; N divisible by `MULTIPLE`.
        dtype: the dtype of the result.
        seeds: several seeds are drawn for each piece.
    """
    total: torch.Tensor | None = None
    for start in range(0, a.shape[1], EXACT_TERMS):
        left, right = (each[:, start : start + EXACT_TERMS] for each in (a, b))
        codes, scales = _rounded(left, seeds)
        other_codes, other_scales = _rounded(right, seeds)
        if len(a) < MIN_ROWS:
            codes = functional.pad(codes, (0, 0, 0, MIN_ROWS - len(a)))
        sums = torch._int_mm(codes, other_codes.t())[: len(a)].float()  # noqa: SLF001 - torch's only one
        sums.mul_(scales[:, None]).mul_(other_scales)
        total = sums if total is None else total.add_(sums)
    return a.new_zeros(len(a), len(b), dtype=dtype) if total is None else total.to(dtype)


def _rounded(x: torch.Tensor, seeds: Seeds) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes `[rows, padded columns]` and float32 scales `[rows]` of `x`."""
    columns = x.shape[1] + -x.shape[1] % MULTIPLE
    codes = torch.empty(len(x), columns, dtype=torch.int8, device=x.device)
    scales = torch.empty(len(x), dtype=torch.float32, device=x.device)
    rows = max(1, rounded_at_a_time(x.device) // columns)
    for start in range(0, len(x), rows):
        here = slice(start, start + rows)
        codes[here], scales[here], _ = quantize_int8(
            filled_up(x[here]), columns, False, True, seeds.draw()
        )
    return codes, scales


def rounded_at_a_time(device: torch.device) -> int:
    """Return the number of elements that one call of `quantize_int8` rounds.

    Each element needs `WORKSPACE` bytes during the call. A CPU is seven times as fast if these
    bytes fit into its caches.
    """
    return 1 << 17 if device.type == "cpu" else 1 << 22


def fp8_gradient_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `a @ b.T`.

    The factors are rounded to the nearest fp8 number, with one scale per tensor.

    `a` is rounded to e5m2, `b` to e4m3. Shapes and dtypes are the same as for `int8_product`. If
    `a` has an inf or NaN, every element of the result is NaN.
    """
    return fp8_product(filled_up(a), filled_up(b), out_dtype=dtype, a_dtype=GRADIENT_DTYPE)


def filled_up(x: torch.Tensor) -> torch.Tensor:
    """Return `x`, contiguous, padded with zero columns to a multiple of `MULTIPLE` columns."""
    missing = -x.shape[1] % MULTIPLE
    return functional.pad(x, (0, missing)) if missing else x.contiguous()
