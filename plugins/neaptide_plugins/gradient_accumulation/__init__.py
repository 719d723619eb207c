"""Gradient accumulation, exact for micro-batches of any weight."""

from .config import SPEC

__all__ = ["SPEC"]
