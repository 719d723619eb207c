"""Triton kernels for the ops of training and of other plugins."""

from .config import SPEC

__all__ = ["SPEC"]
