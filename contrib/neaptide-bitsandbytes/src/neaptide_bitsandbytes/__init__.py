"""The 8-bit and paged optimizers of bitsandbytes."""

from .config import SPEC

__all__ = ["SPEC"]
