"""An exponential moving average of differences between samples, as coefficients of the samples."""

from __future__ import annotations


def coefficient(index: int, samples: int, decay: float) -> float:
    """Return the coefficient of sample `index` in the velocity per sample at the window's end.

    The velocity is the mean of the differences between neighbouring samples, weighted by
    `decay**age`.
    """
    return _weight(index, samples, decay) - _weight(index + 1, samples, decay)


def _weight(index: int, samples: int, decay: float) -> float:
    """Return the weight of the difference that leads to sample `index`."""
    if not 1 <= index < samples:
        return 0.0
    total = (1.0 - decay ** (samples - 1)) / (1.0 - decay)
    return float(decay ** (samples - 1 - index)) / total
