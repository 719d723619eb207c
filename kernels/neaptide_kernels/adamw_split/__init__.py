"""Exact AdamW with float32 weights stored as bfloat16 and int16: 12 bytes per parameter."""

from .op import TRITON, adamw_split_step, has_kernel, runs_by_kernel
from .tuning import shipped

__all__ = ["TRITON", "adamw_split_step", "has_kernel", "runs_by_kernel", "shipped"]
