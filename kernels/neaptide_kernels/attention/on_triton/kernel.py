"""Attention in Triton: FlashAttention-2's schedule (Dao, 2023), forward.

A program computes one block of queries of one head. It goes over the blocks of keys that any of its
queries may see, and rescales its sums when a larger score appears. So no scores reach the memory.

With `DESCRIBED`, query, key and value are tensor descriptors, from which the tensor memory
accelerator (TMA) copies. With `ROLES`, some warps only copy and the others only compute (warp
specialization); Triton compiles this for one loop, so all blocks are masked.
"""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow, uniform

from .kernel_parts import bounds, limited, of_head, product, rows_of, seen

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
_LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@triton.jit
def _sweep(
    total, largest, output, block, key, value, batch, of_key, rows, first, after, seeds, base,
    low, high, m, factor, softcap, dropout, window, key_step, value_step,
    D: tl.constexpr, D_VALUE: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr, ROLES: tl.constexpr,
):  # fmt: skip
    """Add the keys from `low` to `high` to the sums; `low` is a multiple of `COLUMNS`."""
    for start in tl.range(low, high, COLUMNS, warp_specialize=ROLES):
        columns = start + tl.arange(0, COLUMNS)
        keys = rows_of(key, batch, of_key, start, key_step, m, D, COLUMNS, BLOCK_D, DESCRIBED)
        scores = product(block, tl.trans(keys), EXACT) * factor
        if SOFTCAP:
            scores = limited(scores, softcap) * softcap
        scores *= _LOG2E
        if MASKED:
            visible = seen(
                rows[:, None], columns[None, :], first[:, None], after[:, None], m, window,
                CAUSAL, WINDOW, RANGES,
            )  # fmt: skip
            scores = tl.where(visible, scores, float("-inf"))
        peak = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet has no largest score; 0 keeps its exponentials at 0.
        safe = tl.where(peak == float("-inf"), 0.0, peak)
        probabilities = tl.exp2(scores - safe[:, None])
        shrink = tl.exp2(largest - safe)
        total = total * shrink + tl.sum(probabilities, 1)
        if DROPOUT:
            places = (base + rows[:, None].to(tl.int64)) * m + columns[None, :]
            drawn = uniform(tl.load(seeds), tl.load(seeds + 1), places)
            probabilities = tl.where(drawn >= dropout, probabilities, 0.0)
        values = rows_of(
            value, batch, of_key, start, value_step, m, D_VALUE, COLUMNS, BLOCK_D_VALUE, DESCRIBED
        )
        output = output * shrink[:, None]
        output += product(narrow(probabilities, values.dtype), values, EXACT)
        largest = peak
    return total, largest, output


@triton.jit
def attend(
    query, key, value, output, logsumexp, ranges, seeds,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    value_batch, value_head, value_step, output_batch, output_head, output_step,
    heads, group, n, m, factor, softcap, dropout, window,
    D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr, ROLES: tl.constexpr,
):  # fmt: skip
    """Write the output and the logarithm of the sum of `ROWS` queries of one head."""
    start = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_key = head // group
    query = of_head(query, batch, head, query_batch, query_head, DESCRIBED)
    key = of_head(key, batch, of_key, key_batch, key_head, DESCRIBED)
    value = of_head(value, batch, of_key, value_batch, value_head, DESCRIBED)
    output += batch * output_batch + head.to(tl.int64) * output_head
    rows = start + tl.arange(0, ROWS)
    present = rows < n
    inner_value = tl.arange(0, BLOCK_D_VALUE)
    block = rows_of(query, batch, head, start, query_step, n, D, ROWS, BLOCK_D, DESCRIBED)
    first, after = bounds(ranges, batch, rows, present, n, m, RANGES)
    low, high = 0, m
    if CAUSAL:
        high = tl.minimum(high, start + ROWS)
    if WINDOW:
        low = tl.maximum(low, start - window + 1)
        if not CAUSAL:
            high = tl.minimum(high, start + ROWS - 1 + window)
    if RANGES:
        low = tl.maximum(low, tl.min(first, 0))
        high = tl.minimum(high, tl.max(after, 0))
    low = low // COLUMNS * COLUMNS
    base = (batch * heads + head) * n
    total = tl.zeros((ROWS,), tl.float32)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    sums = tl.zeros((ROWS, BLOCK_D_VALUE), tl.float32)
    full = low
    if not (WINDOW or RANGES or ROLES):
        # Every query sees all keys of these blocks, so no mask is computed.
        full = tl.minimum(start, m) if CAUSAL else m
        full = full // COLUMNS * COLUMNS
        total, largest, sums = _sweep(
            total, largest, sums, block, key, value, batch, of_key, rows, first, after, seeds, base,
            low, full, m, factor, softcap, dropout, window, key_step, value_step, D, D_VALUE,
            False, CAUSAL, WINDOW, RANGES, SOFTCAP, DROPOUT, COLUMNS, BLOCK_D, BLOCK_D_VALUE,
            EXACT, DESCRIBED, ROLES,
        )  # fmt: skip
    total, largest, sums = _sweep(
        total, largest, sums, block, key, value, batch, of_key, rows, first, after, seeds, base,
        full, high, m, factor, softcap, dropout, window, key_step, value_step, D, D_VALUE,
        True, CAUSAL, WINDOW, RANGES, SOFTCAP, DROPOUT, COLUMNS, BLOCK_D, BLOCK_D_VALUE,
        EXACT, DESCRIBED, ROLES,
    )  # fmt: skip
    some = total > 0
    share = tl.where(some, 1.0 / tl.where(some, total, 1.0), 0.0)
    # A row of NaN stays NaN; a row without a key is 0.
    share = tl.where(total == total, share, float("nan"))
    logs = tl.where(some, (largest + tl.log2(tl.where(some, total, 1.0))) * _LN2, 0.0)
    logs = tl.where(total == total, logs, float("nan"))
    if DROPOUT:
        share = share / (1.0 - dropout)
    tl.store(logsumexp + base + rows, logs, mask=present)
    tl.store(
        output + rows[:, None].to(tl.int64) * output_step + inner_value[None, :],
        narrow(sums * share[:, None], output.dtype.element_ty),
        mask=present[:, None] & (inner_value[None, :] < D_VALUE),
    )
