"""Lion with an 8-bit momentum in Triton: one launch that reads and writes each element once."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.state_codes.kernel import (
    address,
    decode_signed,
    encode_signed,
    load,
    random_bits,
    rounded,
    store,
    upper_fraction,
)

_COLUMNS: tl.constexpr = tl.constexpr(7)


@triton.jit
def _tile(
    param, grad, mean, mean_scale, left, rate, kept, beta1, beta2, first_key, second_key, step,
    tensor, start, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    rows = tl.arange(0, ROWS)
    offsets = rows[:, None] * 256 + tl.arange(0, 256)[None, :]
    inside = offsets < left
    blocks = rows * 256 < left
    bits = random_bits(first_key, second_key, step, tensor, start, offsets)
    g = load(grad, offsets, inside, WHOLE).to(tl.float32)
    m = decode_signed(load(mean, offsets, inside, WHOLE), load(mean_scale, rows, blocks, WHOLE))
    moved = m * beta1 + g * (1.0 - beta1)
    sign = tl.where(moved > 0, 1.0, tl.where(moved < 0, -1.0, moved))
    weight = load(param, offsets, inside, WHOLE).to(tl.float32)
    weight = rounded(weight * kept - sign * rate, bits, param.dtype.element_ty)
    store(param, offsets, weight, inside, WHOLE)
    codes, scale = encode_signed(m * beta2 + g * (1.0 - beta2), upper_fraction(bits))
    store(mean, offsets, codes, inside, WHOLE)
    store(mean_scale, rows, scale, blocks, WHOLE)


@triton.jit(do_not_specialize=["first_key", "second_key"])
def lion_step(
    table, owners, lr, beta1, beta2, weight_decay, first_key, second_key,
    WEIGHT: tl.constexpr, GRADIENT: tl.constexpr, ROWS: tl.constexpr, ALIGNMENT: tl.constexpr,
):  # fmt: skip
    """Update `ROWS` blocks of 256 elements of one tensor; `table` is `TensorTable.rows`."""
    program = tl.program_id(0)
    tensor = tl.load(owners + program)
    row = table + tensor.to(tl.int64) * _COLUMNS
    chunk = program - tl.load(row + 1)
    start = chunk * (ROWS * 256)
    left = tl.minimum(tl.load(row) - start, ROWS * 256).to(tl.int32)
    param = address(row + 2, WEIGHT, ALIGNMENT) + start
    grad = address(row + 3, GRADIENT, ALIGNMENT) + start
    mean = address(row + 4, tl.int8, ALIGNMENT) + start
    mean_scale = address(row + 5, tl.float32, ALIGNMENT) + chunk * ROWS
    step = tl.load(address(row + 6, tl.float32, 4)).to(tl.int32)
    rate = tl.load(lr)
    kept = 1.0 - rate * weight_decay
    if left == ROWS * 256:
        _tile(
            param, grad, mean, mean_scale, left, rate, kept, beta1, beta2, first_key, second_key,
            step, tensor, start, ROWS, True,
        )  # fmt: skip
    else:
        _tile(
            param, grad, mean, mean_scale, left, rate, kept, beta1, beta2, first_key, second_key,
            step, tensor, start, ROWS, False,
        )  # fmt: skip
