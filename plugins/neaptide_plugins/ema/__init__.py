"""Exponential moving average of the weights, used for evaluation."""

from .config import SPEC

__all__ = ["SPEC"]
