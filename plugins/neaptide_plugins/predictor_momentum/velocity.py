"""The velocity of the weights: the exponential moving average of the differences between samples.

The average is computed as a weighted sum of the samples. The coefficients of the sum depend only on
the number of samples and on the decay.
"""

from __future__ import annotations


def coefficient(index: int, samples: int, decay: float) -> float:
    """Return the coefficient of sample `index` in the velocity at the window's end.

    The unit of the velocity is the change of the weights from one sample to the next. The velocity
    is the weighted mean of the differences between neighbouring samples. A difference
    has the weight `decay**age`; the age of the newest difference is 0.
    """
    return _weight(index, samples, decay) - _weight(index + 1, samples, decay)


def _weight(index: int, samples: int, decay: float) -> float:
    """Return the weight of the difference between sample `index` and the sample before it."""
    if not 1 <= index < samples:
        return 0.0
    total = (1.0 - decay ** (samples - 1)) / (1.0 - decay)
    return float(decay ** (samples - 1 - index)) / total
