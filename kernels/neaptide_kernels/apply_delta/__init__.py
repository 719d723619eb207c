"""Ops that add predicted updates to weights: many tensors and several deltas in one launch."""

from .op import TRITON, apply_delta, apply_int8_delta
from .tuning import shipped

__all__ = ["TRITON", "apply_delta", "apply_int8_delta", "shipped"]
