"""A provider of Neaptide's op `dequantize_int8`. The block size must divide the tensor's size."""

from .config import SPEC

__all__ = ["SPEC"]
