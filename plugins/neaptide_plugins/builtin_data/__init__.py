"""Built-in data sets: real text and real digits. They need no download."""

from .config import SPEC

__all__ = ["SPEC"]
