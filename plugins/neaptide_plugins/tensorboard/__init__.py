"""Writes a run's records as TensorBoard events."""

from .config import SPEC

__all__ = ["SPEC"]
