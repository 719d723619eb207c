"""Detects diverging training and recovers from it."""

from .config import SPEC

__all__ = ["SPEC"]
