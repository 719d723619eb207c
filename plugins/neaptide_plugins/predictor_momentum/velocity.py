"""An exponential moving average of differences, as coefficients of the samples they are between."""

from __future__ import annotations


def coefficient(index: int, samples: int, decay: float) -> float:
    """Return what sample `index` is multiplied by in the velocity, per sample, at the last one.

    The velocity is the mean of the differences between neighbours, weighed by `decay**age`.
    """
    return _weight(index, samples, decay) - _weight(index + 1, samples, decay)


def _weight(index: int, samples: int, decay: float) -> float:
    """Return the weight of the difference that leads to sample `index`."""
    if not 1 <= index < samples:
        return 0.0
    total = (1.0 - decay ** (samples - 1)) / (1.0 - decay)
    return float(decay ** (samples - 1 - index)) / total
