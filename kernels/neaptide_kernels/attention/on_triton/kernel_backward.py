"""Attention in Triton: the backward of FlashAttention-2's schedule (Dao, 2023), without atomics.

One kernel computes the gradients of blocks of keys and values, another one those of blocks of
queries. Both compute the probabilities again. So every sum has a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow, uniform

from .kernel_parts import bounds, limited, of_head, product, rows_of, seen

_LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _scored(raw, factor, softcap, SOFTCAP: tl.constexpr):
    """Return the scores, and the slope of the softcap."""
    scores = raw * factor
    slope = 1.0
    if SOFTCAP:
        share = limited(scores, softcap)
        scores = share * softcap
        slope = 1.0 - share * share
    return scores, slope


@triton.jit
def _over_queries(
    for_key, for_value, keys, values, query, gradient, logsumexp, through, ranges, seeds, batch,
    head, base, low, high, columns, n, m, factor, softcap, dropout, window, query_step,
    gradient_step, D: tl.constexpr, D_VALUE: tl.constexpr, MASKED: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Add what the queries from `low` to `high` give to the gradients of a block of keys."""
    for start in tl.range(low, high, ROWS):
        rows = start + tl.arange(0, ROWS)
        present = rows < n
        block = rows_of(query, batch, head, start, query_step, n, D, ROWS, BLOCK_D, DESCRIBED)
        change = rows_of(
            gradient, batch, head, start, gradient_step, n, D_VALUE, ROWS, BLOCK_D_VALUE, DESCRIBED
        )
        logs = tl.load(logsumexp + base + rows, mask=present, other=0.0)
        mean = tl.load(through + base + rows, mask=present, other=0.0)
        scores, slope = _scored(product(keys, tl.trans(block), EXACT), factor, softcap, SOFTCAP)
        probabilities = tl.exp2((scores - logs[None, :]) * _LOG2E)
        if MASKED:
            first, after = bounds(ranges, batch, rows, present, n, m, RANGES)
            visible = seen(
                rows[None, :], columns[:, None], first[None, :], after[None, :], m, window,
                CAUSAL, WINDOW, RANGES,
            )  # fmt: skip
            probabilities = tl.where(visible, probabilities, 0.0)
        changes = product(values, tl.trans(change), EXACT)
        taken = probabilities
        if DROPOUT:
            places = (base + rows[None, :].to(tl.int64)) * m + columns[:, None]
            keep = uniform(tl.load(seeds), tl.load(seeds + 1), places) >= dropout
            taken = tl.where(keep, probabilities / (1.0 - dropout), 0.0)
            changes = tl.where(keep, changes / (1.0 - dropout), 0.0)
        for_value += product(narrow(taken, change.dtype), change, EXACT)
        steep = probabilities * (changes - mean[None, :]) * slope
        for_key += product(narrow(steep, block.dtype), block, EXACT)
    return for_key, for_value


@triton.jit
def differentiate_keys(
    query, key, value, gradient, logsumexp, through, for_key, for_value, ranges, seeds,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    value_batch, value_head, value_step, gradient_batch, gradient_head, gradient_step,
    for_key_batch, for_key_head, for_key_step, for_value_batch, for_value_head, for_value_step,
    heads, group, n, m, factor, softcap, dropout, window,
    D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Write the gradients of `COLUMNS` keys and values of one head of the key."""
    start = tl.program_id(0) * COLUMNS
    of_key = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    columns = start + tl.arange(0, COLUMNS)
    present = columns < m
    inner = tl.arange(0, BLOCK_D)
    inner_value = tl.arange(0, BLOCK_D_VALUE)
    within = present[:, None] & (inner[None, :] < D)
    within_value = present[:, None] & (inner_value[None, :] < D_VALUE)
    key = of_head(key, batch, of_key, key_batch, key_head, DESCRIBED)
    value = of_head(value, batch, of_key, value_batch, value_head, DESCRIBED)
    far = columns[:, None].to(tl.int64)
    keys = rows_of(key, batch, of_key, start, key_step, m, D, COLUMNS, BLOCK_D, DESCRIBED)
    values = rows_of(
        value, batch, of_key, start, value_step, m, D_VALUE, COLUMNS, BLOCK_D_VALUE, DESCRIBED
    )
    low, high = 0, n
    if CAUSAL:
        low = start // ROWS * ROWS
    if WINDOW:
        high = tl.minimum(high, start + COLUMNS - 1 + window)
        if not CAUSAL:
            low = tl.maximum(low, start - window + 1) // ROWS * ROWS
    middle = high
    if not (WINDOW or RANGES):
        # All queries after this one see all these keys. Without `CAUSAL`, all queries do.
        middle = tl.minimum((start + COLUMNS + ROWS - 1) // ROWS * ROWS, n) if CAUSAL else low
    sums = tl.zeros((COLUMNS, BLOCK_D), tl.float32)
    sums_value = tl.zeros((COLUMNS, BLOCK_D_VALUE), tl.float32)
    for member in range(group):
        head = of_key * group + member
        from_query = of_head(query, batch, head, query_batch, query_head, DESCRIBED)
        from_gradient = of_head(gradient, batch, head, gradient_batch, gradient_head, DESCRIBED)
        base = (batch * heads + head) * n
        sums, sums_value = _over_queries(
            sums, sums_value, keys, values, from_query, from_gradient, logsumexp, through, ranges,
            seeds, batch, head, base, low, middle, columns, n, m, factor, softcap, dropout, window,
            query_step, gradient_step, D, D_VALUE, True, CAUSAL, WINDOW, RANGES, SOFTCAP, DROPOUT,
            ROWS, BLOCK_D, BLOCK_D_VALUE, EXACT, DESCRIBED,
        )  # fmt: skip
        if not (WINDOW or RANGES):
            sums, sums_value = _over_queries(
                sums, sums_value, keys, values, from_query, from_gradient, logsumexp, through,
                ranges, seeds, batch, head, base, middle, high, columns, n, m, factor, softcap,
                dropout, window, query_step, gradient_step, D, D_VALUE, False, CAUSAL, WINDOW,
                RANGES, SOFTCAP, DROPOUT, ROWS, BLOCK_D, BLOCK_D_VALUE, EXACT, DESCRIBED,
            )  # fmt: skip
    for_key += batch * for_key_batch + of_key.to(tl.int64) * for_key_head
    for_value += batch * for_value_batch + of_key.to(tl.int64) * for_value_head
    tl.store(
        for_key + far * for_key_step + inner[None, :],
        narrow(sums * factor, for_key.dtype.element_ty), mask=within,
    )  # fmt: skip
    tl.store(
        for_value + far * for_value_step + inner_value[None, :],
        narrow(sums_value, for_value.dtype.element_ty), mask=within_value,
    )  # fmt: skip


@triton.jit
def _over_keys(
    sums, block, change, key, value, batch, of_key, rows, logs, mean, first, after, seeds, base,
    low, high, m, factor, softcap, dropout, window, key_step, value_step,
    D: tl.constexpr, D_VALUE: tl.constexpr,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr,
    SOFTCAP: tl.constexpr, DROPOUT: tl.constexpr, COLUMNS: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Add what the keys from `low` to `high` give to the gradient of a block of queries."""
    for start in tl.range(low, high, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        keys = rows_of(key, batch, of_key, start, key_step, m, D, COLUMNS, BLOCK_D, DESCRIBED)
        values = rows_of(
            value, batch, of_key, start, value_step, m, D_VALUE, COLUMNS, BLOCK_D_VALUE, DESCRIBED
        )
        scores, slope = _scored(product(block, tl.trans(keys), EXACT), factor, softcap, SOFTCAP)
        probabilities = tl.exp2((scores - logs[:, None]) * _LOG2E)
        if MASKED:
            visible = seen(
                rows[:, None], columns[None, :], first[:, None], after[:, None], m, window,
                CAUSAL, WINDOW, RANGES,
            )  # fmt: skip
            probabilities = tl.where(visible, probabilities, 0.0)
        changes = product(change, tl.trans(values), EXACT)
        if DROPOUT:
            places = (base + rows[:, None].to(tl.int64)) * m + columns[None, :]
            keep = uniform(tl.load(seeds), tl.load(seeds + 1), places) >= dropout
            changes = tl.where(keep, changes / (1.0 - dropout), 0.0)
        steep = probabilities * (changes - mean[:, None]) * slope
        sums += product(narrow(steep, keys.dtype), keys, EXACT)
    return sums


@triton.jit
def differentiate_queries(
    query, key, value, gradient, logsumexp, through, for_query, ranges, seeds,
    query_batch, query_head, query_step, key_batch, key_head, key_step,
    value_batch, value_head, value_step, gradient_batch, gradient_head, gradient_step,
    for_query_batch, for_query_head, for_query_step,
    heads, group, n, m, factor, softcap, dropout, window,
    D: tl.constexpr, D_VALUE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_D_VALUE: tl.constexpr,
    CAUSAL: tl.constexpr, WINDOW: tl.constexpr, RANGES: tl.constexpr, SOFTCAP: tl.constexpr,
    DROPOUT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EXACT: tl.constexpr,
    DESCRIBED: tl.constexpr,
):  # fmt: skip
    """Write the gradient of `ROWS` queries of one head."""
    start = tl.program_id(0) * ROWS
    head = tl.program_id(1)
    batch = tl.program_id(2).to(tl.int64)
    of_key = head // group
    key = of_head(key, batch, of_key, key_batch, key_head, DESCRIBED)
    value = of_head(value, batch, of_key, value_batch, value_head, DESCRIBED)
    query = of_head(query, batch, head, query_batch, query_head, DESCRIBED)
    gradient = of_head(gradient, batch, head, gradient_batch, gradient_head, DESCRIBED)
    for_query += batch * for_query_batch + head.to(tl.int64) * for_query_head
    rows = start + tl.arange(0, ROWS)
    present = rows < n
    inner = tl.arange(0, BLOCK_D)
    block = rows_of(query, batch, head, start, query_step, n, D, ROWS, BLOCK_D, DESCRIBED)
    change = rows_of(
        gradient, batch, head, start, gradient_step, n, D_VALUE, ROWS, BLOCK_D_VALUE, DESCRIBED
    )
    base = (batch * heads + head) * n
    logs = tl.load(logsumexp + base + rows, mask=present, other=0.0)
    mean = tl.load(through + base + rows, mask=present, other=0.0)
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
    sums = tl.zeros((ROWS, BLOCK_D), tl.float32)
    full = low
    if not (WINDOW or RANGES):
        full = tl.minimum(start, m) if CAUSAL else m
        full = full // COLUMNS * COLUMNS
        sums = _over_keys(
            sums, block, change, key, value, batch, of_key, rows, logs, mean, first, after, seeds,
            base, low, full, m, factor, softcap, dropout, window, key_step, value_step, D, D_VALUE,
            False, CAUSAL, WINDOW, RANGES, SOFTCAP, DROPOUT, COLUMNS, BLOCK_D, BLOCK_D_VALUE,
            EXACT, DESCRIBED,
        )  # fmt: skip
    sums = _over_keys(
        sums, block, change, key, value, batch, of_key, rows, logs, mean, first, after, seeds, base,
        full, high, m, factor, softcap, dropout, window, key_step, value_step, D, D_VALUE,
        True, CAUSAL, WINDOW, RANGES, SOFTCAP, DROPOUT, COLUMNS, BLOCK_D, BLOCK_D_VALUE,
        EXACT, DESCRIBED,
    )  # fmt: skip
    tl.store(
        for_query + rows[:, None].to(tl.int64) * for_query_step + inner[None, :],
        narrow(sums * factor, for_query.dtype.element_ty),
        mask=present[:, None] & (inner[None, :] < D),
    )  # fmt: skip
