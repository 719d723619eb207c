"""Shows runs of Neaptide in Weights & Biases."""

from .config import SPEC

__all__ = ["SPEC"]
