"""Predicts updates from the drift of the weights over a long window."""

from .config import SPEC

__all__ = ["SPEC"]
