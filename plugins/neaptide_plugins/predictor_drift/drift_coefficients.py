"""Expresses the drift of the weights over a window as a weighted sum of the window's samples."""

from __future__ import annotations


def half_at(
    update: int,
    fraction: float,
    shortest: int,
    longest: int,
    sample_every: int,
    stretch: float = 1.0,
) -> int:
    """Return the number of samples in each half of the window that begins after `update` updates.

    The window's length in updates is `fraction` times the number of updates from the start of the
    run to the window's end. This length is limited to the range from `shortest` to `longest`, and
    then multiplied by `stretch`.
    """
    wanted = update * fraction / (1.0 - fraction)
    whole = min(max(wanted, shortest), longest) * stretch
    return max(1, round(whole / 2 / sample_every))


def share_of(index: int, samples: int) -> float:
    """Return the coefficient of sample `index` in mean(second half) - mean(first half).

    This difference of means (the drift) is a weighted sum of the updates in the window. The
    coefficients of this sum are largest in the middle of the window, and fall linearly to its ends.
    """
    half = samples // 2
    return (1.0 if index >= half else -1.0) / half


def reach(half: int, scale: float, horizon: int) -> tuple[float, int]:
    """Return the scale of a jump, and the number of updates that it replaces: at most `horizon`.

    The distance between the centres of the two halves is `half` updates. So the weights move by
    `scale` times the drift in `scale * half` updates.
    """
    scale = min(scale, horizon / half)
    return scale, max(1, round(scale * half))
