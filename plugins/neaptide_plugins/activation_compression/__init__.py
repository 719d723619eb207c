"""Stores activations as int8 until the backward needs them."""

from .config import SPEC

__all__ = ["SPEC"]
