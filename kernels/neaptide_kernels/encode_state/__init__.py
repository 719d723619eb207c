"""A run's histories encoded as 64 numbers: the state that predictors and schedulers receive."""

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
