"""Predicts updates from the weights' average velocity over a window."""

from .config import SPEC

__all__ = ["SPEC"]
