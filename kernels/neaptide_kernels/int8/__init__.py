"""Int8 by tensor, channel or block: the one home of this arithmetic."""

from .op import TRITON, dequantize_int8, quantize_int8
from .tuning import shipped

__all__ = ["TRITON", "dequantize_int8", "quantize_int8", "shipped"]
