"""The optimizer Lion with its momentum in the weights' dtype."""

from .op import lion_step, runs_by_kernel, shipped

TRITON = ()
"""There is no kernel for a GPU."""

__all__ = ["TRITON", "lion_step", "runs_by_kernel", "shipped"]
