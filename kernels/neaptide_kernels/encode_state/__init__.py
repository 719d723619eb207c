"""The op that encodes the histories of a run as 64 numbers, for predictors and schedulers."""

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
