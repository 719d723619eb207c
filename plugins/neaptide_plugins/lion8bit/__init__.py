"""Lion with its momentum in 8 bits."""

from .config import SPEC

__all__ = ["SPEC"]
