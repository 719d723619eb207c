"""A provider of Neaptide's op `dequantize_int8`, for blocks that divide the tensor."""

from .config import SPEC

__all__ = ["SPEC"]
