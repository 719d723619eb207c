"""The drift of a sequence of weights over a window, as coefficients of its samples."""

from __future__ import annotations


def half_at(
    update: int,
    fraction: float,
    shortest: int,
    longest: int,
    sample_every: int,
    stretch: float = 1.0,
) -> int:
    """Return the samples in each half of the window that begins after `update` updates.

    The whole window is to span `fraction` of all updates at its end, times `stretch`, which may
    take it beyond `shortest` and `longest`.
    """
    wanted = update * fraction / (1.0 - fraction)
    whole = min(max(wanted, shortest), longest) * stretch
    return max(1, round(whole / 2 / sample_every))


def share_of(index: int, samples: int) -> float:
    """Return the coefficient of sample `index` in mean(second half) - mean(first half).

    Summed by parts this is a sum of the updates in between with triangular weights, largest in
    the middle of the window.
    """
    half = samples // 2
    return (1.0 if index >= half else -1.0) / half


def reach(half: int, scale: float, horizon: int) -> tuple[float, int]:
    """Return the scale of a jump of at most `horizon` updates, and the updates it stands for.

    The means of the halves lie `half` updates apart: `scale` of their distance is `scale * half`
    updates of drift.
    """
    scale = min(scale, horizon / half)
    return scale, max(1, round(scale * half))
