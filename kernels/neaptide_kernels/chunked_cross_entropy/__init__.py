"""Head and cross-entropy of a language model, computed by chunks of tokens to save memory."""

from .loss import chunked_cross_entropy
from .op import TRITON
from .tuning import shipped

__all__ = ["TRITON", "chunked_cross_entropy", "shipped"]
