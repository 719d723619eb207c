"""The optimizer Lion with an 8-bit momentum."""

from .config import SPEC

__all__ = ["SPEC"]
