"""The rollout in Triton: one program for each start of a member, all steps in one launch.

The weights of a step are larger than the memory of a multiprocessor, so each step reads them from
the L2 cache. A program keeps its state in the results: it stores a step's state, waits for its
threads, and reads the state back.
"""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow


@triton.jit
def _rows(weights, rows, inside, state, columns, SIZE: tl.constexpr):
    """Return the products of rows of weights with the state."""
    block = tl.load(
        weights + rows.to(tl.int64)[:, None] * SIZE + columns[None, :],
        mask=inside[:, None] & (columns < SIZE)[None, :], other=0.0,
    )  # fmt: skip
    return tl.sum(block.to(tl.float32) * state[None, :], 1)


@triton.jit
def _chosen(mixing, rows, there, places, inside, SIZE: tl.constexpr):
    """Return the sum of some columns over the rows that the categories choose."""
    block = tl.load(
        mixing + rows[:, None] * (3 * SIZE) + places[None, :],
        mask=there[:, None] & inside[None, :], other=0.0,
    )  # fmt: skip
    return tl.sum(block.to(tl.float32), 0)


@triton.jit
def roll(
    deter, stoch, drive, mixing, recurrent, recurrent_bias, head, head_bias, deters, stochs,
    starts, steps,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, CATEGORIES: tl.constexpr,
    UNITS: tl.constexpr, ALL_GROUPS: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Roll out from one start. `UNITS`, `ALL_GROUPS`, `WIDTH` are the sizes as powers of two."""
    row = tl.program_id(0).to(tl.int64)
    before, kinds = deter + row * SIZE, stoch + row * GROUPS
    deters += row * steps * SIZE
    stochs += row * steps * GROUPS
    drive += row * steps * (3 * SIZE)
    member = row // starts
    mixing += member * (GROUPS * CATEGORIES * 3 * SIZE)
    recurrent += member * (3 * SIZE * SIZE)
    recurrent_bias += member * (3 * SIZE)
    head += member * (GROUPS * CATEGORIES * SIZE)
    head_bias += member * (GROUPS * CATEGORIES)
    units, groups = tl.arange(0, UNITS), tl.arange(0, ALL_GROUPS)
    there = groups < GROUPS
    kind = tl.arange(0, WIDTH)
    real = kind < CATEGORIES
    for _ in range(steps):
        state = tl.load(before + units, mask=units < SIZE, other=0.0).to(tl.float32)
        # A wrong category must not read other memory.
        category = tl.load(kinds + groups, mask=there, other=0)
        category = tl.minimum(tl.maximum(category, 0), CATEGORIES - 1)
        chosen = groups * CATEGORIES + category
        for start in range(0, SIZE, TILE):
            place = start + tl.arange(0, TILE)
            inside = place < SIZE
            own = _rows(recurrent, place, inside, state, units, SIZE)
            own += tl.load(recurrent_bias + place, mask=inside, other=0.0).to(tl.float32)
            own += tl.load(drive + place, mask=inside, other=0.0).to(tl.float32)
            reset = 1.0 / (1.0 + tl.exp(-own - _chosen(mixing, chosen, there, place, inside, SIZE)))
            at = SIZE + place
            own = _rows(recurrent, at, inside, state, units, SIZE)
            own += tl.load(recurrent_bias + at, mask=inside, other=0.0).to(tl.float32)
            own += tl.load(drive + at, mask=inside, other=0.0).to(tl.float32)
            update = 1.0 / (1.0 + tl.exp(-own - _chosen(mixing, chosen, there, at, inside, SIZE)))
            at = 2 * SIZE + place
            own = _rows(recurrent, at, inside, state, units, SIZE)
            own += tl.load(recurrent_bias + at, mask=inside, other=0.0).to(tl.float32)
            given = tl.load(drive + at, mask=inside, other=0.0).to(tl.float32)
            given += _chosen(mixing, chosen, there, at, inside, SIZE)
            # Triton's interpreter has no tanh.
            new = 1.0 - 2.0 / (tl.exp(2.0 * (given + reset * own)) + 1.0)
            old = tl.load(before + place, mask=inside, other=0.0).to(tl.float32)
            result = narrow(new + update * (old - new), deters.dtype.element_ty)
            tl.store(deters + place, result, mask=inside)
        tl.debug_barrier()
        state = tl.load(deters + units, mask=units < SIZE, other=0.0).to(tl.float32)
        for group in range(GROUPS):
            places = group * CATEGORIES + kind
            logits = _rows(head, places, real, state, units, SIZE)
            logits += tl.load(head_bias + places, mask=real, other=0.0).to(tl.float32)
            best = tl.argmax(tl.where(real, logits, float("-inf")), 0).to(tl.int64)
            tl.store(stochs + group, tl.minimum(best, CATEGORIES - 1))
        tl.debug_barrier()
        before, kinds = deters, stochs
        deters += SIZE
        stochs += GROUPS
        drive += 3 * SIZE
