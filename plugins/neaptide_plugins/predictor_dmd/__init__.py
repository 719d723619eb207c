"""Predicts updates by dynamic mode decomposition of samples of the weights."""

from .config import SPEC

__all__ = ["SPEC"]
