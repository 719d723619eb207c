"""Products of two matrices with both factors rounded to 8 bits."""

from __future__ import annotations

import attrs
import torch
from torch.nn import functional

from neaptide_kernels.int8 import quantize_int8
from neaptide_toolkit.low_precision import GRADIENT_DTYPE, fp8_product

EXACT_TERMS = 1 << 17
"""Products of two codes, at most 127 * 127 each, that int32 can add up without overflow."""

MULTIPLE = 16
"""What the kernels want sizes to be divisible by; the number of terms is filled up with zeros."""

MIN_ROWS = 32
"""Rows CUDA's int8 kernel is given at least: it wants more than 16."""

WORKSPACE = 41
"""Bytes for each element that is being rounded stochastically by torch operations."""

SUMS = 8
"""Bytes for each element of an int8 product meanwhile: int32, and float32 to scale them in."""


@attrs.define(eq=False)
class Seeds:
    """Seeds of stochastic rounding, each drawn once: a run's own seed, and how many were drawn."""

    run: int
    drawn: int = 0

    def draw(self) -> int:
        """Return the next seed, of 63 bits."""
        self.drawn += 1
        return ((self.run & 0x7FFFFFFF) << 32) | (self.drawn & 0xFFFFFFFF)


def int8_product(
    a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype, seeds: Seeds
) -> torch.Tensor:
    """Return `a @ b.T` with a scale for each row of both, rounded stochastically.

    The mean over many seeds is the exact product. Sums of codes are exact in int32; beyond
    `EXACT_TERMS` terms they are made piecewise, each piece with scales of its own. A row with inf
    or NaN makes its products NaN.

    Args:
        a: `[M, K]`, floating.
        b: `[N, K]`, floating; N divisible by `MULTIPLE`.
        dtype: of the result.
        seeds: some are drawn for each piece.
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
    """Return codes, filled up to a multiple of columns, and the scales of rows; a few at a time."""
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
    """Return how many elements are rounded by one call; each needs `WORKSPACE` bytes meanwhile.

    A CPU does it in a seventh of the time while all of that fits its caches.
    """
    return 1 << 17 if device.type == "cpu" else 1 << 22


def fp8_gradient_product(a: torch.Tensor, b: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return `a @ b.T` with `a` in e5m2 and `b` in e4m3, one scale each, rounded to the nearest.

    Arguments as those of `int8_product`. A gradient with an inf or NaN makes everything NaN.
    """
    return fp8_product(filled_up(a), filled_up(b), out_dtype=dtype, a_dtype=GRADIENT_DTYPE)


def filled_up(x: torch.Tensor) -> torch.Tensor:
    """Return `x` with zeros after its columns, so that `MULTIPLE` divides them; contiguous."""
    missing = -x.shape[1] % MULTIPLE
    return functional.pad(x, (0, missing)) if missing else x.contiguous()
