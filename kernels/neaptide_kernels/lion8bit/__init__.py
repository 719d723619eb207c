"""Lion with its momentum in 8 bits."""

from .op import TRITON, lion8bit_step, new_state, shipped

__all__ = ["TRITON", "lion8bit_step", "new_state", "shipped"]
