"""Built-in data sets of real text and real digits, which need no download."""

from .config import SPEC

__all__ = ["SPEC"]
