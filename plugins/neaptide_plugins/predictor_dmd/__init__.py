"""Predicts updates by dynamic mode decomposition of a window of weights."""

from .config import SPEC

__all__ = ["SPEC"]
