"""Predicts updates by a line or a parabola through a window of weights."""

from .config import SPEC

__all__ = ["SPEC"]
