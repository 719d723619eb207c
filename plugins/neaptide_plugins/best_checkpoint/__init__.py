"""A copy of the checkpoint with the best evaluation."""

from .config import SPEC

__all__ = ["SPEC"]
