"""Int8 quantization with one scale per tensor, channel or block."""

from .op import TRITON, dequantize_int8, quantize_int8
from .tuning import shipped

__all__ = ["TRITON", "dequantize_int8", "quantize_int8", "shipped"]
