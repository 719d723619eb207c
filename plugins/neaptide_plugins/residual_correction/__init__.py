"""Corrects jumps by how earlier jumps erred."""

from .config import SPEC

__all__ = ["SPEC"]
