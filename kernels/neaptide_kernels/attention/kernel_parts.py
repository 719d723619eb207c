"""Triton functions that the forward and the backward of attention share."""

from __future__ import annotations

import triton
import triton.language as tl

_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def product(left, right, EXACT: tl.constexpr):
    """Return `left @ right` in float32. `EXACT`: float32 factors are not rounded to tf32.

    In Triton's interpreter, products of 16-bit factors are garbage, so the factors are widened.
    """
    if _INTERPRETED:
        return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision="ieee")
    if EXACT:
        return tl.dot(left, right, input_precision="ieee")
    return tl.dot(left, right)


@triton.jit
def limited(values, softcap):
    """Return `tanh(values / softcap)`; Triton's interpreter has no tanh."""
    return 1.0 - 2.0 / (tl.exp(values / softcap * 2.0) + 1.0)


@triton.jit
def seen(
    rows, columns, first, after, m, window,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr,
):  # fmt: skip
    """Return where a query may see a key; all arguments broadcast."""
    visible = columns < m
    if CAUSAL:
        visible = visible & (columns <= rows)
    if WINDOW:
        visible = visible & (rows - columns < window)
        if not CAUSAL:
            visible = visible & (columns - rows < window)
    if RANGES:
        visible = visible & (columns >= first) & (columns < after)
    return visible


@triton.jit
def bounds(ranges, batch, rows, present, n, m, RANGES: tl.constexpr):
    """Return the range of keys that each query sees; a query that does not exist sees none."""
    if RANGES:
        ranges += (batch * n + rows) * 2
        first = tl.load(ranges, mask=present, other=m)
        after = tl.load(ranges + 1, mask=present, other=0)
    else:
        first, after = rows * 0, rows * 0 + m
    return first, after
