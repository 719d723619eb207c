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


@triton.jit
def of_head(source, batch, head, batch_step, head_step, DESCRIBED: tl.constexpr):
    """Return the address of a head's first row; with `DESCRIBED`, the descriptor of all heads."""
    found = source
    if not DESCRIBED:
        found += batch * batch_step + head.to(tl.int64) * head_step
    return found


@triton.jit
def rows_of(
    source, batch, head, start, step, tokens, D: tl.constexpr,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Return `ROWS` rows of a head from `start` on, with zeros after its last row and element.

    `source` is what `of_head` returns. A descriptor is copied from by the tensor memory
    accelerator (TMA), which computes no addresses in the program.
    """
    if DESCRIBED:
        found = source.load([batch.to(tl.int32), head, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        rows = start + tl.arange(0, ROWS)
        inner = tl.arange(0, BLOCK_D)
        found = tl.load(
            source + rows[:, None].to(tl.int64) * step + inner[None, :],
            mask=(rows < tokens)[:, None] & (inner[None, :] < D), other=0.0,
        )  # fmt: skip
    return found
