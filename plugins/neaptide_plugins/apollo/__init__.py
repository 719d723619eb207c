"""The optimizer APOLLO: learning rates of rows or columns from a random projection of gradients."""

from .config import SPEC

__all__ = ["SPEC"]
