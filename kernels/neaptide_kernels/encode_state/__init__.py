"""The op that encodes a run's losses, gradient norms and step times as 64 numbers.

The numbers are for predictors and schedulers.
"""

from .features import EXTRAS, FEATURES, LOSSES, NORMS, SECONDS
from .op import TRITON, encode_state
from .packing import packed
from .tuning import shipped

__all__ = [
    "EXTRAS",
    "FEATURES",
    "LOSSES",
    "NORMS",
    "SECONDS",
    "TRITON",
    "encode_state",
    "packed",
    "shipped",
]
