"""Gradient accumulation, exact for micro-batches with different numbers of tokens."""

from .config import SPEC

__all__ = ["SPEC"]
