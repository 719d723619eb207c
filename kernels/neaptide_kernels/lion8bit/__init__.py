"""The optimizer Lion with an 8-bit momentum."""

from .op import TRITON, lion8bit_step, new_state, shipped

__all__ = ["TRITON", "lion8bit_step", "new_state", "shipped"]
