"""Add scaled deltas to weights in Triton: one launch for all weights and all deltas."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow, uniform

from .reference import STRIDE_BITS

_STRIDE_BITS: tl.constexpr = tl.constexpr(STRIDE_BITS)
_SMALLEST_NORMAL: tl.constexpr = tl.constexpr(2.0**-14)
_SIGN: tl.constexpr = tl.constexpr(0x80000000)


@triton.jit
def _address(row, place, start, dtype: tl.constexpr):
    pointer = tl.load(row + place).to(tl.pointer_type(dtype)) + start
    return tl.multiple_of(pointer, 16)


@triton.jit
def _rounded(values, draw, dtype: tl.constexpr):
    """Compute `reference.rounded`; the random bits are from `draw`: numbers in [0, 1)."""
    dropped: tl.constexpr = 13 if dtype == tl.float16 else 16
    magnitude = tl.abs(values)
    lift = tl.zeros_like(values)
    if dtype == tl.float16:
        lift = tl.where(magnitude < _SMALLEST_NORMAL, _SMALLEST_NORMAL, 0.0)
    bits = (draw * (1 << dropped)).to(tl.uint32)
    raw = (magnitude + lift).to(tl.uint32, bitcast=True) + bits
    cut = ((raw >> dropped) << dropped).to(tl.float32, bitcast=True) - lift
    sign = values.to(tl.uint32, bitcast=True) & _SIGN
    cut = (cut.to(tl.uint32, bitcast=True) | sign).to(tl.float32, bitcast=True)
    return tl.where(magnitude < float("inf"), cut, values)


@triton.jit
def _apply(
    row, place, start, left, scale, scale_step, group, first_key, second_key,
    PARAM: tl.constexpr, DELTA: tl.constexpr, SETS: tl.constexpr,
    STOCHASTIC: tl.constexpr,
    WHOLE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    places = tl.arange(0, CHUNK)
    # A mask prevents wide loads. Only the last chunk of a tensor needs a mask.
    inside = None if WHOLE else places < left
    param = _address(row, 2, start, PARAM)
    total = tl.load(param + places, mask=inside).to(tl.float32)
    for each in tl.static_range(SETS):
        delta = _address(row, 3 + each, start, DELTA)
        value = tl.load(delta + places, mask=inside).to(tl.float32)
        if DELTA == tl.int8:  # noqa: SIM300 - an argument in capitals
            sizes = tl.load(row + 3 + SETS + each).to(tl.pointer_type(tl.float32))
            sizes += start // group
            groups = ((start % group).to(tl.int32) + places) // group
            value *= tl.load(sizes + groups, mask=inside)
        total += value * tl.load(scale + each * scale_step).to(tl.float32)
    if STOCHASTIC:
        positions = (place.to(tl.int64) << _STRIDE_BITS) + start + places
        total = _rounded(total, uniform(first_key, second_key, positions), PARAM)
    tl.store(param + places, narrow(total, PARAM), mask=inside)


@triton.jit(do_not_specialize=["first_key", "second_key"])
def apply_deltas(
    rows, owners, scale, columns, scale_step, group, first_key, second_key,
    PARAM: tl.constexpr, DELTA: tl.constexpr, SETS: tl.constexpr,
    STOCHASTIC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Update one chunk of one weight; launch with `enable_fp_fusion=False`."""
    program = tl.program_id(0)
    place = tl.load(owners + program)
    row = rows + place * columns
    start = (program - tl.load(row + 1)) * CHUNK
    left = tl.load(row) - start
    if left >= CHUNK:
        _apply(
            row, place, start, CHUNK, scale, scale_step, group, first_key, second_key,
            PARAM, DELTA, SETS, STOCHASTIC, True, CHUNK,
        )  # fmt: skip
    else:
        _apply(
            row, place, start, left.to(tl.int32), scale, scale_step, group,
            first_key, second_key, PARAM, DELTA, SETS, STOCHASTIC, False, CHUNK,
        )  # fmt: skip
