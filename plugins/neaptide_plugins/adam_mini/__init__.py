"""The optimizer Adam-mini: a second moment of one number per row."""

from .config import SPEC

__all__ = ["SPEC"]
