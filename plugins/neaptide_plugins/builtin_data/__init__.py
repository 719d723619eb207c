"""Built-in data: real text and real digits, without a download."""

from .config import SPEC

__all__ = ["SPEC"]
