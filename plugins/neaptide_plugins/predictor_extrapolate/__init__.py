"""Predicts updates by a line or a parabola fitted to samples of the weights."""

from .config import SPEC

__all__ = ["SPEC"]
