"""Shows a run in TensorBoard."""

from .config import SPEC

__all__ = ["SPEC"]
