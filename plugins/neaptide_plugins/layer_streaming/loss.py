"""A language model's head and cross-entropy, over chunks of tokens: never all logits at once."""

from neaptide_kernels.chunked_cross_entropy import chunked_cross_entropy

__all__ = ["chunked_cross_entropy"]
