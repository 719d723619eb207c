"""Expresses the drift of the weights over a window as coefficients of the window's samples."""

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

    The window's length is `fraction` of all updates until the window's end, limited to `shortest`
    and `longest`, and then multiplied by `stretch`.
    """
    wanted = update * fraction / (1.0 - fraction)
    whole = min(max(wanted, shortest), longest) * stretch
    return max(1, round(whole / 2 / sample_every))


def share_of(index: int, samples: int) -> float:
    """Return the coefficient of sample `index` in mean(second half) - mean(first half).

    The drift equals a weighted sum of the updates in the window. The weights are triangular and
    largest in the middle of the window.
    """
    half = samples // 2
    return (1.0 if index >= half else -1.0) / half


def reach(half: int, scale: float, horizon: int) -> tuple[float, int]:
    """Return the scale of a jump, and the number of updates it replaces, at most `horizon`.

    The distance between the centres of the two halves is `half` updates. So `scale` times the
    drift is the movement of `scale * half` updates.
    """
    scale = min(scale, horizon / half)
    return scale, max(1, round(scale * half))
