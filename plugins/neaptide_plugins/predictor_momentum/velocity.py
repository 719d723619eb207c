"""The exponential moving average of the differences between samples.

It is computed as a sum of the samples with known coefficients.
"""

from __future__ import annotations


def coefficient(index: int, samples: int, decay: float) -> float:
    """Return the coefficient of sample `index` in the velocity per sample at the window's end.

    The velocity is the weighted mean of the differences between neighbouring samples. The weights
    are `decay**age`.
    """
    return _weight(index, samples, decay) - _weight(index + 1, samples, decay)


def _weight(index: int, samples: int, decay: float) -> float:
    """Return the weight of the difference between sample `index` and the sample before it."""
    if not 1 <= index < samples:
        return 0.0
    total = (1.0 - decay ** (samples - 1)) / (1.0 - decay)
    return float(decay ** (samples - 1 - index)) / total
