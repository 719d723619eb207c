"""The optimizer Lion: the sign of a momentum."""

from .config import SPEC

__all__ = ["SPEC"]
