"""Exact AdamW where a float32 master is a bfloat16 and an int16: 12 bytes a parameter."""

from .op import TRITON, adamw_split_step, has_kernel, runs_by_kernel
from .tuning import shipped

__all__ = ["TRITON", "adamw_split_step", "has_kernel", "runs_by_kernel", "shipped"]
