"""Gated units (SwiGLU, GeGLU): an activation of one tensor times another."""

from .op import TRITON, gated_unit
from .reference import ACTIVATIONS
from .tuning import shipped

__all__ = ["ACTIVATIONS", "TRITON", "gated_unit", "shipped"]
