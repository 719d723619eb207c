"""Matrix products with weights in 8 bits: interception, fp8 scaling, hardware support."""

from .fp8 import DTYPE, GRADIENT_DTYPE, fp8_product
from .hardware import FP8_TENSOR_CORES, fp8_missing, fp8_slower, int8_slower, untried
from .interception import Product, intercepting, not_a_view, refuse_second_derivative
from .weights import Chosen, choose_weights

__all__ = [
    "DTYPE",
    "FP8_TENSOR_CORES",
    "GRADIENT_DTYPE",
    "Chosen",
    "Product",
    "choose_weights",
    "fp8_missing",
    "fp8_product",
    "fp8_slower",
    "int8_slower",
    "intercepting",
    "not_a_view",
    "refuse_second_derivative",
    "untried",
]
