"""Triton kernels for the ops that training and the other plugins use."""

from .config import SPEC

__all__ = ["SPEC"]
