"""The optimizer Adafactor: a second moment of one row and one column per matrix."""

from .config import SPEC

__all__ = ["SPEC"]
