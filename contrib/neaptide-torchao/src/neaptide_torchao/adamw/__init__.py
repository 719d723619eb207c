"""torchao's AdamW with 8-bit, 4-bit or fp8 state."""

from .config import SPEC

__all__ = ["SPEC"]
