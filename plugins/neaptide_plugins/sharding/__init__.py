"""One model on several processes: each computes its part of every batch."""

from .config import SPEC

__all__ = ["SPEC"]
