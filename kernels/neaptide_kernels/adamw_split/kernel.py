"""AdamW over split masters in Triton: one kernel for a step's constants, one for all tensors.

A split master is a float32 weight that is stored as two 16-bit numbers; see `split_master`.

Every operation rounds like torch's kernels for a CPU with FMA (fused multiply-add). These kernels
and torch's kernels fuse the same two pairs of operations. No other operations may be fused, so
launch with `enable_fp_fusion=False`. The square root is rounded as IEEE 754 requires. In some
builds of torch, the square root differs from this in the last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

_UPPER: tl.constexpr = tl.constexpr(-(1 << 27))
_EXCHANGED: tl.constexpr = tl.constexpr(0xFF81)
_NAN: tl.constexpr = tl.constexpr(0x7F81)
_HALF: tl.constexpr = tl.constexpr(0.5)
_INTERPRETED: tl.constexpr = tl.constexpr(bool(triton.knobs.runtime.interpret))


@triton.jit
def _fused(factor, other, term):
    """Return `factor * other + term`, rounded once; in the interpreter `tl.fma` rounds twice."""
    if _INTERPRETED:
        exact = factor.to(tl.float64) * other.to(tl.float64)
        return (exact + term.to(tl.float64)).to(tl.float32)
    return tl.fma(factor, other, term)


@triton.jit
def _times(high, low, other_high, other_low):
    """Return the product of two numbers, each a sum `high + low` of two float64 numbers.

    The relative error is about 2**-104.
    """
    product = high * other_high
    upper = (high.to(tl.int64, bitcast=True) & _UPPER).to(tl.float64, bitcast=True)
    other_upper = (other_high.to(tl.int64, bitcast=True) & _UPPER).to(tl.float64, bitcast=True)
    lower = high - upper
    other_lower = other_high - other_upper
    rest = (upper * other_upper - product) + upper * other_lower
    rest += lower * other_upper
    rest += lower * other_lower + (high * other_low + low * other_high)
    total = product + rest
    return total, rest - (total - product)


@triton.jit
def _power(base, exponent):
    """Return `base ** exponent`, rounded once; `base` is float64 in [0, 1), `exponent` < 2**31."""
    zero = base - base
    high, low, factor, factor_low = zero + 1, zero, base, zero
    for _ in range(31):
        next_high, next_low = _times(high, low, factor, factor_low)
        odd = (exponent & 1) != 0
        high = tl.where(odd, next_high, high)
        low = tl.where(odd, next_low, low)
        factor, factor_low = _times(factor, factor_low, factor, factor_low)
        exponent = exponent >> 1
    return high


@triton.jit
def _number(bits):
    # Triton passes the bits of zero as int32.
    return bits.to(tl.int64).to(tl.float64, bitcast=True)


@triton.jit(do_not_specialize=["beta1_bits", "beta2_bits", "eps_bits", "decay_bits"])
def step_constants(lr, step, out, beta1_bits, beta2_bits, eps_bits, decay_bits):
    """Write the seven float32 constants of a step, in the order that `adamw_split` expects.

    Triton passes floating-point arguments as float32. So each float64 option is passed as an int64
    with the same 64 bits.
    """
    beta1, beta2 = _number(beta1_bits), _number(beta2_bits)
    decay = _number(decay_bits)
    count = tl.load(step).to(tl.int64)
    first = 1 - _power(beta1, count)
    second = 1 - _power(beta2, count)
    rate = tl.load(lr)
    if lr.dtype.element_ty == tl.float64:
        kept = (1 - rate * decay).to(tl.float32)
        size = (rate / first).to(tl.float32)
    else:
        kept = 1 - rate * decay.to(tl.float32)
        size = tl.div_rn(rate, first.to(tl.float32))
    tl.store(out, tl.where(decay == 0, 1.0, kept))
    tl.store(out + 1, -size)
    tl.store(out + 2, tl.sqrt(second).to(tl.float32))
    tl.store(out + 3, (1 - beta1).to(tl.float32))
    tl.store(out + 4, beta2.to(tl.float32))
    tl.store(out + 5, (1 - beta2).to(tl.float32))
    tl.store(out + 6, _number(eps_bits).to(tl.float32))


@triton.jit
def _exchange(high, borrowed):
    magnitude = high & 0x7FFF
    concerned = borrowed & ((magnitude == 0) | (magnitude == _NAN))
    return tl.where(concerned, high ^ _EXCHANGED, high)


@triton.jit
def _join(hi, lo):
    borrowed = lo < 0
    high = _exchange(hi.to(tl.uint16, bitcast=True).to(tl.uint32), borrowed)
    high = high - borrowed.to(tl.uint32)
    bits = (high << 16) | lo.to(tl.uint16, bitcast=True).to(tl.uint32)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _split(master):
    bits = master.to(tl.uint32, bitcast=True)
    lo = (bits & 0xFFFF).to(tl.uint16).to(tl.int16, bitcast=True)
    borrowed = lo < 0
    high = ((bits >> 16) + borrowed.to(tl.uint32)) & 0xFFFF
    hi = _exchange(high, borrowed).to(tl.uint16).to(tl.bfloat16, bitcast=True)
    return hi, lo


@triton.jit
def _update(
    hi, lo, exp_avg, exp_avg_sq, grad, left, constants,
    MAXIMIZE: tl.constexpr, WHOLE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    kept, size, correction = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    weight1, beta2 = tl.load(constants + 3), tl.load(constants + 4)
    weight2, eps = tl.load(constants + 5), tl.load(constants + 6)
    places = tl.arange(0, CHUNK)
    # A mask prevents wide loads. Only the last chunk of a tensor needs a mask.
    inside = None if WHOLE else places < left
    gradient = tl.load(grad + places, mask=inside).to(tl.float32)
    if MAXIMIZE:
        gradient = -gradient
    mean = tl.load(exp_avg + places, mask=inside)
    near = weight1 < _HALF  # torch interpolates from the nearer end
    factor = tl.where(near, weight1, weight1 - 1)
    mean = _fused(factor, gradient - mean, tl.where(near, mean, gradient))
    square = tl.load(exp_avg_sq + places, mask=inside) * beta2
    square = _fused(weight2 * gradient, gradient, square)
    denominator = tl.div_rn(tl.sqrt_rn(square), correction) + eps
    master = _join(tl.load(hi + places, mask=inside), tl.load(lo + places, mask=inside))
    master = master * kept + tl.div_rn(size * mean, denominator)
    high, low = _split(master)
    tl.store(hi + places, high, mask=inside)
    tl.store(lo + places, low, mask=inside)
    tl.store(exp_avg + places, mean, mask=inside)
    tl.store(exp_avg_sq + places, square, mask=inside)


@triton.jit
def _address(row, place, start, dtype: tl.constexpr):
    pointer = tl.load(row + place).to(tl.pointer_type(dtype)) + start
    return tl.multiple_of(pointer, 16)


@triton.jit
def adamw_split(
    rows, owners, constants,
    GRAD: tl.constexpr, MAXIMIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Update one chunk of one tensor: `hi`, `lo` and the moments."""
    program = tl.program_id(0)
    row = rows + tl.load(owners + program) * 7
    start = (program - tl.load(row + 1)) * CHUNK
    left = tl.load(row) - start
    hi = _address(row, 2, start, tl.bfloat16)
    lo = _address(row, 3, start, tl.int16)
    exp_avg = _address(row, 4, start, tl.float32)
    exp_avg_sq = _address(row, 5, start, tl.float32)
    grad = _address(row, 6, start, GRAD)
    if left >= CHUNK:
        _update(
            hi, lo, exp_avg, exp_avg_sq, grad, CHUNK, constants, MAXIMIZE, True, CHUNK
        )  # fmt: skip
    else:
        _update(
            hi, lo, exp_avg, exp_avg_sq, grad, left.to(tl.int32), constants, MAXIMIZE, False, CHUNK
        )  # fmt: skip
