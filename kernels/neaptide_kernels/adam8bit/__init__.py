"""AdamW with both moments in 8 bits."""

from .op import TRITON, adam8bit_step, new_state, shipped

__all__ = ["TRITON", "adam8bit_step", "new_state", "shipped"]
