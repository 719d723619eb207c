"""A language model's head and cross-entropy over chunks of tokens: never all logits at once."""

from .loss import chunked_cross_entropy
from .op import TRITON
from .tuning import shipped

__all__ = ["TRITON", "chunked_cross_entropy", "shipped"]
