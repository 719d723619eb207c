"""Head (output layer) and cross-entropy of a language model, in chunks of tokens."""

from .loss import chunked_cross_entropy
from .op import TRITON
from .tuning import shipped

__all__ = ["TRITON", "chunked_cross_entropy", "shipped"]
