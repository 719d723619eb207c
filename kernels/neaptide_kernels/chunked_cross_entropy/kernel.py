"""Cross-entropy of rows of logits in Triton, each row overwritten by its gradient."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow

_LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _limited(values, softcap):
    """Return `tanh(values / softcap)`; there is no tanh to interpret."""
    return 1.0 - 2.0 / (tl.exp(values / softcap * 2.0) + 1.0)


@triton.jit
def differentiate_rows(
    logits, labels, losses, ignore_index, softcap,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr,
    SOFTCAP: tl.constexpr, WITH_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Write a row's loss, and over its logits their gradient: two reads, one write of each.

    A program has a row of `VOCABULARY` contiguous logits, a constant: a model has one. Maximum and
    sum are kept by lane, so that the first read needs one exponential an element and no exchange
    between lanes.
    """
    row = tl.program_id(0).to(tl.int64)
    logits += row * VOCABULARY
    columns = tl.arange(0, TILE)
    label = tl.load(labels + row)
    if label == ignore_index:
        tl.store(losses + row, 0.0)
        if WITH_GRADIENT:
            nothing = tl.zeros((TILE,), tl.float32).to(logits.dtype.element_ty)
            for start in range(0, VOCABULARY, TILE):
                tl.store(logits + start + columns, nothing, mask=start + columns < VOCABULARY)
        return
    right = (label >= 0) & (label < VOCABULARY)
    chosen = tl.load(logits + tl.where(right, label, 0)).to(tl.float32)
    if SOFTCAP:
        chosen = _limited(chosen, softcap) * softcap
    # Every warp has the logit before one of them writes over it.
    tl.debug_barrier()
    largest = tl.full((TILE,), _LOWEST, tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, VOCABULARY, TILE):
        inside = start + columns < VOCABULARY
        values = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        if SOFTCAP:
            values = tl.where(inside, _limited(values, softcap) * softcap, float("-inf"))
        above = values - largest
        # Of the larger and the smaller one of the two exponentials is 1.
        other = tl.exp(-tl.abs(above))
        total = tl.where(above > 0, total * other + 1.0, total + other)
        largest = tl.maximum(largest, values)
    peak = tl.max(largest, 0)
    whole = tl.sum(total * tl.exp(largest - peak), 0)
    # With an infinite logit, or one label too many, there is no distribution.
    whole = tl.where(right & (peak < float("inf")), whole, float("nan"))
    tl.store(losses + row, tl.log(whole) + (peak - chosen))
    if WITH_GRADIENT:
        share = 1.0 / whole
        for start in range(0, VOCABULARY, TILE):
            inside = start + columns < VOCABULARY
            values = tl.load(logits + start + columns, mask=inside, other=0.0).to(tl.float32)
            slope = 1.0
            if SOFTCAP:
                limited = _limited(values, softcap)
                values = limited * softcap
                slope = 1.0 - limited * limited
            gradient = tl.exp(values - peak) * share
            gradient = tl.where(start + columns == label, gradient - 1.0, gradient) * slope
            written = narrow(gradient, logits.dtype.element_ty)
            tl.store(logits + start + columns, written, mask=inside)
