"""Stores the activations that the backward needs as int8."""

from .config import SPEC

__all__ = ["SPEC"]
