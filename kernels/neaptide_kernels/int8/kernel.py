"""Int8 in Triton: a tile consists of several whole groups, or of a piece of one long group."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow, round_half_even, uniform

_SMALLEST: tl.constexpr = tl.constexpr(2.0**-120)


@triton.jit
def _encode(values, inverse, zero, positions, first_key, second_key, affine, stochastic):
    scaled = values * inverse
    if stochastic:
        below = tl.floor(scaled)
        up = uniform(first_key, second_key, positions) < scaled - below
        scaled = tl.where(up, below + 1.0, below)
    else:
        scaled = round_half_even(scaled)
    least = -128.0 if affine else -127.0
    # Comparisons with NaN are false, so values that cannot be scaled get code 0.
    codes = scaled + zero
    codes = tl.where(codes == codes, codes, 0.0)
    return tl.minimum(tl.maximum(codes, least), 127.0).to(tl.int8)


@triton.jit
def _parameters(low, high, affine):
    if affine:
        # Without ALL, the lesser of NaN and 0 is 0.
        low = tl.minimum(low, 0.0, tl.PropagateNan.ALL)
        extent = tl.maximum(high, 0.0, tl.PropagateNan.ALL) * 0.5 - low * 0.5
        codes = 127.5
    else:
        extent = tl.maximum(-low, high)
        codes = 127.0
    extent = tl.where(extent < _SMALLEST, 0.0, extent)
    nothing = extent == 0.0
    extent = tl.where(extent == float("inf"), float("nan"), extent)
    codes = tl.zeros_like(extent) + codes
    scale = tl.div_rn(extent, codes)
    inverse = tl.div_rn(codes, tl.where(nothing, float("inf"), extent))
    zero = tl.zeros_like(extent)
    if affine:
        zero = -128.0 - round_half_even(low * inverse)
        zero = tl.where((zero == zero) & (extent != 0.0), zero, 0.0)
        zero = tl.minimum(tl.maximum(zero, -128.0), 127.0)
    return scale, inverse, zero


@triton.jit
def quantize_groups(
    x, codes, scale, zero, elements, groups, group, first_key, second_key,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AFFINE: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """Quantize `ROWS` groups of at most `WIDTH` elements; each element is read once."""
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    columns = tl.arange(0, WIDTH)
    # 64-bit positions need more registers, and 32 bits are enough for positions in the tile.
    start = first_row * group
    places = tl.arange(0, ROWS)[:, None] * group + columns[None, :]
    left = tl.minimum(elements - start, ROWS * WIDTH).to(tl.int32)
    inside = (columns < group)[None, :] & (places < left)
    values = tl.load(x + start + places, mask=inside, other=0.0).to(tl.float32)
    broken = tl.max((values != values).to(tl.int32), 1) != 0
    low = tl.where(broken, float("nan"), tl.min(values, 1))
    high = tl.where(broken, float("nan"), tl.max(values, 1))
    scales, inverse, zeros = _parameters(low, high, AFFINE)
    result = _encode(
        values,
        inverse[:, None],
        zeros[:, None],
        start + places,
        first_key,
        second_key,
        AFFINE,
        STOCHASTIC,
    )
    tl.store(codes + start + places, result, mask=inside)
    tl.store(scale + rows, scales, mask=rows < groups)
    tl.store(zero + rows, zeros.to(tl.int8), mask=rows < groups)


@triton.jit
def _piece(program, elements, group, pieces, WIDTH: tl.constexpr):
    """Return, for a piece of a long group, the start and the number of elements."""
    column = (program % pieces) * WIDTH
    start = (program // pieces) * group + column
    return start, tl.minimum(tl.minimum(group - column, elements - start), WIDTH).to(tl.int32)


@triton.jit
def extremes(x, low, high, elements, group, pieces, WIDTH: tl.constexpr):
    """Write the least and the largest element of a piece of a long group; NaN propagates.

    A piece has `WIDTH` elements.
    """
    program = tl.program_id(0).to(tl.int64)
    start, left = _piece(program, elements, group, pieces, WIDTH)
    places = tl.arange(0, WIDTH)
    values = tl.load(x + start + places, mask=places < left, other=0.0).to(tl.float32)
    broken = tl.max((values != values).to(tl.int32), 0) != 0
    tl.store(low + program, tl.where(broken, float("nan"), tl.min(values, 0)))
    tl.store(high + program, tl.where(broken, float("nan"), tl.max(values, 0)))


@triton.jit
def encode_pieces(
    x, codes, inverse, zero, elements, group, pieces, first_key, second_key,
    WIDTH: tl.constexpr, AFFINE: tl.constexpr, STOCHASTIC: tl.constexpr,
):  # fmt: skip
    """Write the codes of one piece of a long group; scale and zero point are given."""
    program = tl.program_id(0).to(tl.int64)
    row = program // pieces
    start, left = _piece(program, elements, group, pieces, WIDTH)
    places = tl.arange(0, WIDTH)
    values = tl.load(x + start + places, mask=places < left, other=0.0).to(tl.float32)
    result = _encode(
        values, tl.load(inverse + row), tl.load(zero + row), start + places, first_key, second_key,
        AFFINE, STOCHASTIC,
    )  # fmt: skip
    tl.store(codes + start + places, result, mask=places < left)


@triton.jit
def decode(
    codes, scale, zero, out, elements, groups, group, pieces,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, HAS_ZERO: tl.constexpr,
):  # fmt: skip
    """Write the decoded values of `ROWS` groups, or of one piece of a group."""
    program = tl.program_id(0).to(tl.int64)
    first_row = (program // pieces) * ROWS
    rows = first_row + tl.arange(0, ROWS)
    first_column = (program % pieces) * WIDTH
    columns = tl.arange(0, WIDTH)
    start = first_row * group + first_column
    # If there are several rows, each is a whole group. The group of a single row may have more
    # elements than 32 bits can count.
    places = tl.arange(0, ROWS)[:, None] * tl.minimum(group, WIDTH).to(tl.int32) + columns[None, :]
    left = tl.minimum(elements - start, ROWS * WIDTH).to(tl.int32)
    inside = (columns < group - first_column)[None, :] & (places < left)
    values = tl.load(codes + start + places, mask=inside, other=0).to(tl.float32)
    if HAS_ZERO:
        values -= tl.load(zero + rows, mask=rows < groups, other=0).to(tl.float32)[:, None]
    values *= tl.load(scale + rows, mask=rows < groups, other=0.0)[:, None]
    tl.store(out + start + places, narrow(values, out.dtype.element_ty), mask=inside)
