"""Rotary position embeddings (RoPE) of queries and keys."""

from .op import TRITON, rope
from .tuning import shipped

__all__ = ["TRITON", "rope", "shipped"]
