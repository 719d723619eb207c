"""Activations saved for the backward as int8."""

from .config import SPEC

__all__ = ["SPEC"]
