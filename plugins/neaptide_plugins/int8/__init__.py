"""Weights as int8 in the phases that need no more, with the full ones off the device meanwhile."""

from .config import SPEC

__all__ = ["SPEC"]
