"""Gated units in Triton: every element is read once, forward and backward."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow

_ROOT_HALF: tl.constexpr = tl.constexpr(0.7071067811865476)
_ROOT_2_BY_PI: tl.constexpr = tl.constexpr(0.7978845608028654)
_CUBIC: tl.constexpr = tl.constexpr(0.044715)
_DENSITY: tl.constexpr = tl.constexpr(0.3989422804014327)


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """Return the activation of float32 numbers, and its derivative."""
    if ACTIVATION == "silu":
        share = 1.0 / (1.0 + tl.exp(-x))
        value = x * share
        slope = share + value * (1.0 - share)
    elif ACTIVATION == "gelu":
        share = 0.5 * (1.0 + tl.erf(x * _ROOT_HALF))
        value = x * share
        slope = share + x * tl.exp(-0.5 * x * x) * _DENSITY
    elif ACTIVATION == "gelu_tanh":
        inner = _ROOT_2_BY_PI * (x + _CUBIC * x * x * x)
        # Triton's interpreter has no tanh.
        limited = 1.0 - 2.0 / (tl.exp(2.0 * inner) + 1.0)
        value = 0.5 * x * (1.0 + limited)
        inner_slope = _ROOT_2_BY_PI * (1.0 + 3.0 * _CUBIC * x * x)
        slope = 0.5 * (1.0 + limited) + 0.5 * x * (1.0 - limited * limited) * inner_slope
    else:
        slope = tl.where(x > 0, 1.0, 0.0)
        value = tl.where(x > 0, x, tl.where(x == x, 0.0, x))
    return value, slope


@triton.jit
def gate_rows(
    gate, up, y, gate_step, up_step, columns,
    ACTIVATION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Compute a tile of a row. The steps are the distances of rows; `y` has no gaps."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = places < columns
    value, _ = _activated(
        tl.load(gate + row * gate_step + places, mask=inside, other=0.0).to(tl.float32), ACTIVATION
    )
    # As torch does, the activation is rounded before the product.
    value = narrow(value, y.dtype.element_ty).to(tl.float32)
    value *= tl.load(up + row * up_step + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + places, narrow(value, y.dtype.element_ty), mask=inside)


@triton.jit
def gate_rows_backward(
    gradient, gate, up, of_gate, of_up, gradient_step, gate_step, up_step, columns,
    ACTIVATION: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Differentiate a tile of a row."""
    row = tl.program_id(0).to(tl.int64)
    places = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = places < columns
    given = tl.load(gradient + row * gradient_step + places, mask=inside, other=0.0).to(tl.float32)
    value, slope = _activated(
        tl.load(gate + row * gate_step + places, mask=inside, other=0.0).to(tl.float32), ACTIVATION
    )
    factor = tl.load(up + row * up_step + places, mask=inside, other=0.0).to(tl.float32)
    place = row * columns + places
    tl.store(of_gate + place, narrow(given * factor * slope, of_gate.dtype.element_ty), mask=inside)
    tl.store(of_up + place, narrow(given * value, of_up.dtype.element_ty), mask=inside)
