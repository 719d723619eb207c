"""Triton on the simulated device: a kernel is one launch, and its programs run by the interpreter.

`import triton` is enough. This module declares what the interpreter cannot know.
"""

from __future__ import annotations

from simulated_gpu.triton.declared import declare_cost, launches, register_reference
from simulated_gpu.triton.running import CannotInterpretError

__all__ = ["CannotInterpretError", "declare_cost", "launches", "register_reference"]
