"""A language model's head and cross-entropy, by chunks of tokens to bound the logits' memory."""

from .loss import chunked_cross_entropy
from .op import TRITON
from .tuning import shipped

__all__ = ["TRITON", "chunked_cross_entropy", "shipped"]
