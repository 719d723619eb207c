"""Cross-entropy of rows of logits in Triton; the gradient overwrites each row of logits."""

from __future__ import annotations

import triton
import triton.language as tl

from neaptide_kernels.device import narrow

_LOWEST: tl.constexpr = tl.constexpr(-3.4028234663852886e38)


@triton.jit
def _limited(values, softcap):
    """Return `tanh(values / softcap)`; Triton's interpreter has no tanh."""
    return 1.0 - 2.0 / (tl.exp(values / softcap * 2.0) + 1.0)


@triton.jit
def differentiate_rows(
    logits, labels, losses, ignore_index, softcap,
    VOCABULARY: tl.constexpr, TILE: tl.constexpr,
    SOFTCAP: tl.constexpr, WITH_GRADIENT: tl.constexpr,
):  # fmt: skip
    """Write the loss of a row, and overwrite the row's logits with the gradient.

    Each logit is read twice and written once. A program handles one row of `VOCABULARY` contiguous
    logits. `VOCABULARY` is a constant, because a model has only one vocabulary. Each of the `TILE`
    lanes has its own maximum and sum. So the first read needs one exponential per element and no
    exchange between lanes.
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
    # Every warp must read the label's logit before any warp overwrites it.
    tl.debug_barrier()
    largest = tl.full((TILE,), _LOWEST, tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for start in range(0, VOCABULARY, TILE):
        inside = start + columns < VOCABULARY
        values = tl.load(logits + start + columns, mask=inside, other=float("-inf")).to(tl.float32)
        if SOFTCAP:
            values = tl.where(inside, _limited(values, softcap) * softcap, float("-inf"))
        above = values - largest
        # One of the two exponentials is exp(0) = 1, so only the other exponential is computed.
        other = tl.exp(-tl.abs(above))
        total = tl.where(above > 0, total * other + 1.0, total + other)
        largest = tl.maximum(largest, values)
    peak = tl.max(largest, 0)
    whole = tl.sum(total * tl.exp(largest - peak), 0)
    # An infinite logit or an invalid label makes the result NaN, because no distribution exists.
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
