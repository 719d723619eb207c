"""Computes the features of one run in one Triton program. `reference` defines the features."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.encode_state.features import (
    DECAYS,
    EXTRAS,
    FEATURES,
    LOSSES,
    NORMS,
    QUANTILES,
    SECONDS,
    SHORTEST_SECONDS,
    SPANS,
)
from neaptide_kernels.encode_state.reference import UNEXPLAINED

_ALL: tl.constexpr = tl.constexpr(len(FEATURES))
_LOSSES: tl.constexpr = tl.constexpr(LOSSES)
_NORMS: tl.constexpr = tl.constexpr(NORMS)
_SECONDS: tl.constexpr = tl.constexpr(SECONDS)
_EXTRAS: tl.constexpr = tl.constexpr(len(EXTRAS))
_SHORTEST_SECONDS: tl.constexpr = tl.constexpr(SHORTEST_SECONDS)
_UNEXPLAINED: tl.constexpr = tl.constexpr(UNEXPLAINED)
_FAST: tl.constexpr = tl.constexpr(DECAYS[0])
_SLOW: tl.constexpr = tl.constexpr(DECAYS[1])
_SLOWEST: tl.constexpr = tl.constexpr(DECAYS[2])
_QUANTILES: tl.constexpr = tl.constexpr(len(QUANTILES))
_Q0, _Q1, _Q2, _Q3, _Q4, _Q5, _Q6 = (tl.constexpr(share) for share in QUANTILES)
_MEDIAN: tl.constexpr = tl.constexpr(QUANTILES.index(0.5))
_SPAN: tl.constexpr = tl.constexpr(SPANS[0])
_THREE: tl.constexpr = tl.constexpr(3)
_ROOT_12: tl.constexpr = tl.constexpr(12**0.5)
_LARGEST: tl.constexpr = tl.constexpr(3.4028234663852886e38)


@triton.jit
def _over(number, divisor):
    return tl.where(divisor > 0, tl.div_rn(number, tl.where(divisor > 0, divisor, 1.0)), 0.0)


@triton.jit
def _mean(numbers, weights):
    axis: tl.constexpr = len(numbers.shape) - 1
    return _over(tl.sum(numbers * weights, axis), tl.sum(weights, axis))


@triton.jit
def _level(number):
    size = tl.log(1.0 + tl.abs(number))
    return tl.where(number < 0, -size, size)


@triton.jit
def _unit_level(number, unit):
    return _level(tl.minimum(tl.maximum(number * unit, -_LARGEST), _LARGEST))


@triton.jit
def _aged(ring, seen, filled, age, SIZE: tl.constexpr):
    """Return the samples of the given ages, and a mask of the finite samples.

    Missing samples and samples that are not finite are 0.
    """
    there = age < filled
    # The `&` wraps the index around the ring, so a masked sample's index is inside the ring, too.
    raw = tl.load(ring + ((seen - 1 - age) & (SIZE - 1)), mask=there, other=0.0)
    valid = there & (tl.abs(raw) <= _LARGEST)
    return tl.where(valid, raw, 0.0), valid


@triton.jit
def _window(ring, seen, SIZE: tl.constexpr):
    age = tl.arange(0, SIZE)
    filled = tl.minimum(tl.maximum(seen, 0), SIZE).to(tl.int32)
    raw, valid = _aged(ring, seen, filled, age, SIZE)
    weight = valid.to(tl.float32)
    largest = tl.max(tl.abs(raw), 0)
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 0xFF
    inverse = tl.minimum(tl.maximum(254 - exponent, 1), 253)
    unit = ((254 - inverse) << 23).to(tl.float32, bitcast=True)
    inverse = (inverse << 23).to(tl.float32, bitcast=True)
    newest = tl.min(tl.where(valid, age, SIZE - 1), 0)
    last = tl.sum(tl.where(age == newest, raw, 0.0), 0) * inverse
    away = tl.where(valid, raw * inverse - last, 0.0)
    mean = _mean(away, weight)
    deviation = tl.where(valid, away - mean, 0.0)
    std = tl.sqrt_rn(_mean(deviation * deviation, weight))
    return age, filled, raw, valid, weight, inverse, unit, last, away, mean, deviation, std


@triton.jit
def _presence(out, weight, filled, SIZE: tl.constexpr):
    count = tl.sum(weight, 0)
    tl.store(out, count / SIZE)
    tl.store(out + 1, _over(filled - count, filled.to(tl.float32)))
    return count


@triton.jit
def _trend(age, span, deviation, std):
    """Return the rise, the fit and the variance of the samples in each span.

    A row of `span` describes one span: 1 for the samples in this span, 0 for other samples.
    """
    time = -age.to(tl.float32)[None, :]
    time = (time - _mean(time, span)[:, None]) * span
    around = (deviation[None, :] - _mean(deviation[None, :], span)[:, None]) * span
    along = _mean(time * around, span)
    of_time = _mean(time * time, span)
    of_losses = _mean(around * around, span)
    rise = _over(_over(along * _ROOT_12, tl.sqrt_rn(of_time)), std)
    fit = _over(along * along, of_time * (of_losses + _UNEXPLAINED * std * std))
    return rise, fit, of_losses


@triton.jit
def _quantiles(away, valid, count):
    """Return the seven quantiles of `away` and, as padding, the last quantile again: `[8]`."""
    rank = tl.arange(0, away.shape[0])
    ordered = tl.sort(tl.where(valid, away, float("inf")))
    ordered = tl.where(rank < count, ordered, 0.0)
    which = tl.arange(0, 8)
    low = tl.where(which == 0, _Q0, tl.where(which == 1, _Q1, tl.where(which == 2, _Q2, _Q3)))  # noqa: PLR2004 - places
    high = tl.where(which == 4, _Q4, tl.where(which == 5, _Q5, _Q6))  # noqa: PLR2004 - places
    share = tl.where(which < 4, low, high)  # noqa: PLR2004 - places
    place = share * tl.maximum(count - 1.0, 0.0)
    # Linear interpolation: the weight of a neighbour is 1 minus the distance to this neighbour.
    near = tl.maximum(1.0 - tl.abs(rank.to(tl.float32)[None, :] - place[:, None]), 0.0)
    return tl.sum(near * ordered[None, :], 1)


@triton.jit
def _neighbours(ring, seen, filled, age, raw, valid, std, inverse, out):
    older, second = _aged(ring, seen, filled, age + 1, _LOSSES)
    oldest, third = _aged(ring, seen, filled, age + 2, _LOSSES)
    pairs = valid & second
    triples = pairs & third
    newest = age < _SPAN - 1
    falls = (pairs & (raw < older)).to(tl.float32)
    turns = triples & ((raw < older) & (older > oldest) | (raw > older) & (older < oldest))
    apart = tl.abs(raw * inverse - older * inverse)
    tl.store(out + 39, _mean(falls, pairs.to(tl.float32)))
    tl.store(out + 40, _mean(falls, (pairs & newest).to(tl.float32)))
    tl.store(out + 41, _over(_mean(apart, pairs.to(tl.float32)), std))
    tl.store(out + 42, _mean(turns.to(tl.float32), triples.to(tl.float32)))


@triton.jit
def _echo(ring, seen, filled, age, valid, z, middle, inverse, std, apart: tl.constexpr):
    older, there = _aged(ring, seen, filled, age + apart, _LOSSES)
    z_older = _over(older * inverse - middle, std)
    pairs = (valid & there).to(tl.float32)
    return _mean(z * z_older, pairs)


@triton.jit
def _of_losses(ring, seen, out):
    (
        age, filled, raw, valid, weight, inverse, unit, last, away, mean, deviation, std,
    ) = _window(ring, seen, _LOSSES)  # fmt: skip
    count = _presence(out, weight, filled, _LOSSES)
    some = count > 0
    least = tl.min(tl.where(valid, away, float("inf")), 0)
    largest = tl.max(tl.where(valid, away, float("-inf")), 0)
    since = tl.min(tl.where(valid & (away == least), age, _LOSSES), 0).to(tl.float32)
    z = _over(deviation, std)
    squares = z * z
    tl.store(out + 2, _unit_level(last, unit))
    tl.store(out + 3, _unit_level(last + mean, unit))
    tl.store(out + 5, tl.where(some, _unit_level(last + least, unit), 0.0))
    tl.store(out + 6, tl.where(some, _unit_level(last + largest, unit), 0.0))
    tl.store(out + 7, _unit_level(std, unit))
    tl.store(out + 8, _over(std, std + tl.abs(last + mean)))
    tl.store(out + 9, _mean(squares * z, weight))
    tl.store(out + 10, tl.where(std > 0, _level(_mean(squares * squares, weight) - 3.0), 0.0))
    eight = tl.arange(0, 8)
    quantiles = _quantiles(away, valid, count)
    tl.store(out + 4 + 0 * eight, _unit_level(last + quantiles, unit), mask=eight == _MEDIAN)
    tl.store(out + 11 + eight, _over(quantiles - mean, std), mask=eight < _QUANTILES)
    tl.store(out + 18, _over(-mean, std))
    below = tl.sum((valid & (away < 0)).to(tl.float32), 0)
    equal = tl.sum((valid & (away == 0)).to(tl.float32), 0)
    tl.store(out + 19, _over(below + (equal - 1.0) * 0.5, count - 1.0))
    tl.store(out + 20, tl.where(some, since / _LOSSES, 0.0))

    # One row for each span: 8, 32, 128 and 512 samples. 512 stands for all samples.
    four = tl.arange(0, 4)
    length = tl.full((4,), _SPAN, tl.int32) << (2 * four)
    span = (age[None, :] < length[:, None]).to(tl.float32) * weight[None, :]
    rise, fit, variance = _trend(age, span, deviation, std)
    tl.store(out + 21 + four, _mean(z[None, :], span), mask=four < _THREE)
    tl.store(out + 24 + four, _over(tl.sqrt_rn(variance), std), mask=four < _THREE)
    tl.store(out + 27 + four, rise)
    tl.store(out + 31 + four, fit)

    third = (3 * age) // tl.maximum(filled, 1)
    part = (third[None, :] == four[:, None]).to(tl.float32) * weight[None, :]
    present = tl.sum((tl.sum(part, 1) > 0).to(tl.int32), 0)
    sign = tl.where(four == 1, -2.0, tl.where(four < _THREE, 1.0, 0.0))
    bend = tl.sum(_mean(z[None, :], part) * sign, 0)
    tl.store(out + 35, tl.where(present == _THREE, bend, 0.0))

    decay = tl.where(four == 0, _FAST, tl.where(four == 1, _SLOW, _SLOWEST))
    fading = tl.exp(age.to(tl.float32)[None, :] * tl.log(decay)[:, None]) * weight[None, :]
    tl.store(out + 36 + four, _mean(z[None, :], fading), mask=four < _THREE)
    _neighbours(ring, seen, filled, age, raw, valid, std, inverse, out)
    middle = last + mean
    tl.store(out + 43, _echo(ring, seen, filled, age, valid, z, middle, inverse, std, 1))
    tl.store(out + 44, _echo(ring, seen, filled, age, valid, z, middle, inverse, std, 8))


@triton.jit
def _of_norms(ring, seen, out):
    (
        age, filled, _, _, weight, _, unit, last, _, mean, deviation, std,
    ) = _window(ring, seen, _NORMS)  # fmt: skip
    _presence(out, weight, filled, _NORMS)
    tl.store(out + 2, _unit_level(last, unit))
    tl.store(out + 3, _unit_level(last + mean, unit))
    tl.store(out + 4, _over(std, std + tl.abs(last + mean)))
    tl.store(out + 5, _over(-mean, std))
    rise, _, _ = _trend(age, weight[None, :], deviation, std)
    tl.store(out + 6 + tl.arange(0, 1), rise)


@triton.jit
def _of_seconds(ring, seen, out):
    (
        _, filled, _, _, weight, _, unit, last, _, mean, _, std,
    ) = _window(ring, seen, _SECONDS)  # fmt: skip
    count = _presence(out, weight, filled, _SECONDS)
    middle = tl.minimum(tl.maximum((last + mean) * unit, _SHORTEST_SECONDS), _LARGEST)
    tl.store(out + 2, tl.where(count > 0, tl.log(middle), 0.0))
    tl.store(out + 3, _over(std, std + tl.abs(last + mean)))


@triton.jit
def encode(losses, losses_seen, norms, norms_seen, seconds, seconds_seen, extras, out):
    """Write the features of run number `program`."""
    run = tl.program_id(0).to(tl.int64)
    out += run * _ALL
    _of_losses(losses + run * _LOSSES, tl.load(losses_seen + run), out)
    _of_norms(norms + run * _NORMS, tl.load(norms_seen + run), out + 45)
    _of_seconds(seconds + run * _SECONDS, tl.load(seconds_seen + run), out + 52)
    place = tl.arange(0, _EXTRAS)
    given = tl.load(extras + run * _EXTRAS + place)
    tl.store(out + 56 + place, tl.where(tl.abs(given) <= _LARGEST, given, 0.0))
