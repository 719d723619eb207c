"""RoPE in Triton: a program turns some vectors; every element is read and written once."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow


@triton.jit
def _product(values, factors, dtype: tl.constexpr):
    """Return a product, rounded as torch rounds it."""
    return narrow(values * factors, dtype).to(tl.float32)


@triton.jit
def turn(
    x, cos, sin, y, vectors, heads, tokens,
    x_batch, x_head, x_token, x_step, y_batch, y_head, y_token, y_step,
    t_batch, t_head, t_token, t_step, s_batch, s_head, s_token, s_step,
    WIDTH: tl.constexpr, REST: tl.constexpr, ROWS: tl.constexpr,
    HALF_TILE: tl.constexpr, REST_TILE: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Turn `ROWS` vectors. `t_` are the distances in `cos`, `s_` those in `sin`; 0 repeats."""
    dtype: tl.constexpr = x.dtype.element_ty
    half: tl.constexpr = WIDTH // 2
    vector = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    token = vector % tokens
    head = vector // tokens % heads
    batch = vector // tokens // heads
    x += (batch * x_batch + head * x_head + token * x_token)[:, None]
    y += (batch * y_batch + head * y_head + token * y_token)[:, None]
    cos += (batch * t_batch + head * t_head + token * t_token)[:, None]
    sin += (batch * s_batch + head * s_head + token * s_token)[:, None]
    exists = (vector < vectors)[:, None]
    columns = tl.arange(0, HALF_TILE)[None, :]
    inside = exists & (columns < half)
    others = columns + half
    first = tl.load(x + columns * x_step, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(x + others * x_step, mask=inside, other=0.0).to(tl.float32)
    first_cos = tl.load(cos + columns * t_step, mask=inside, other=0.0).to(tl.float32)
    second_cos = tl.load(cos + others * t_step, mask=inside, other=0.0).to(tl.float32)
    first_sin = tl.load(sin + columns * s_step, mask=inside, other=0.0).to(tl.float32)
    second_sin = tl.load(sin + others * s_step, mask=inside, other=0.0).to(tl.float32)
    one = _product(first, first_cos, dtype)
    two = _product(second, second_cos, dtype)
    if TRANSPOSED:
        one += _product(second, second_sin, dtype)
        two -= _product(first, first_sin, dtype)
    else:
        one -= _product(second, first_sin, dtype)
        two += _product(first, second_sin, dtype)
    tl.store(y + columns * y_step, narrow(one, dtype), mask=inside)
    tl.store(y + others * y_step, narrow(two, dtype), mask=inside)
    if REST:
        columns = tl.arange(0, REST_TILE)[None, :]
        inside = exists & (columns < REST)
        columns += WIDTH
        tl.store(y + columns * y_step, tl.load(x + columns * x_step, mask=inside), mask=inside)
