"""Built-in data: real text and real digits that need no download."""

from .config import SPEC

__all__ = ["SPEC"]
