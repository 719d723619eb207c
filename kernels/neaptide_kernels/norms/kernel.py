"""RMSNorm and LayerNorm in Triton: a program computes rows; a row is one tile."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow


@triton.jit
def norm_rows(
    x, weight, bias, y, means, rstds, x_step, eps, offset,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, CENTERED: tl.constexpr,
    WEIGHT: tl.constexpr, BIAS: tl.constexpr, NARROW_FIRST: tl.constexpr,
):  # fmt: skip
    """Normalize one row. `x_step` is the distance of rows of `x`; `y` has no gaps."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < COLUMNS
    values = tl.load(x + row * x_step + columns, mask=inside, other=0.0).to(tl.float32)
    if CENTERED:
        mean = tl.sum(values, 0) / COLUMNS
        tl.store(means + row, mean)
        values = tl.where(inside, values - mean, 0.0)
    rstd = 1.0 / tl.sqrt_rn(tl.sum(values * values, 0) / COLUMNS + eps)
    tl.store(rstds + row, rstd)
    values *= rstd
    if NARROW_FIRST:
        values = narrow(values, x.dtype.element_ty).to(tl.float32)
    if WEIGHT:
        values *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + offset
    if BIAS:
        values += tl.load(bias + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * COLUMNS + columns, narrow(values, y.dtype.element_ty), mask=inside)


@triton.jit
def norm_rows_backward(
    gradient, x, weight, means, rstds, of_x, of_weight, of_bias,
    gradient_step, x_step, rows, offset,
    COLUMNS: tl.constexpr, TILE: tl.constexpr, CENTERED: tl.constexpr,
    WEIGHT: tl.constexpr, FOR_WEIGHT: tl.constexpr, FOR_BIAS: tl.constexpr,
    NARROW_FIRST: tl.constexpr,
):  # fmt: skip
    """Differentiate every `num_programs`-th row; a program's sums are a row of `of_weight`."""
    program = tl.program_id(0).to(tl.int64)
    programs = tl.num_programs(0).to(tl.int64)
    columns = tl.arange(0, TILE)
    inside = columns < COLUMNS
    for_weight = tl.zeros((TILE,), tl.float32)
    for_bias = tl.zeros((TILE,), tl.float32)
    of_weight += program * COLUMNS
    of_bias += program * COLUMNS
    row = program
    for _ in range(tl.program_id(0), rows, tl.num_programs(0)):
        rstd = tl.load(rstds + row)
        normal = tl.load(x + row * x_step + columns, mask=inside, other=0.0).to(tl.float32)
        if CENTERED:
            normal = tl.where(inside, normal - tl.load(means + row), 0.0)
        normal *= rstd
        slope = tl.load(gradient + row * gradient_step + columns, mask=inside, other=0.0)
        slope = slope.to(tl.float32)
        if FOR_BIAS:
            for_bias += slope
        if FOR_WEIGHT:
            scaled = normal
            if NARROW_FIRST:
                scaled = narrow(normal, x.dtype.element_ty).to(tl.float32)
            for_weight += slope * scaled
        if WEIGHT:  # from the cache for every row, because registers are few
            slope *= tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32) + offset
        result = slope - normal * (tl.sum(slope * normal, 0) / COLUMNS)
        if CENTERED:
            result -= tl.sum(slope, 0) / COLUMNS
        written = narrow(result * rstd, of_x.dtype.element_ty)
        tl.store(of_x + row * COLUMNS + columns, written, mask=inside)
        row += programs
    if FOR_WEIGHT:
        tl.store(of_weight + columns, for_weight, mask=inside)
    if FOR_BIAS:
        tl.store(of_bias + columns, for_bias, mask=inside)
