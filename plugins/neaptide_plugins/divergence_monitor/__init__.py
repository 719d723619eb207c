"""Detects diverging training, and recovers the run."""

from .config import SPEC

__all__ = ["SPEC"]
