"""Samples memory at several moments of each step."""

from .config import SPEC

__all__ = ["SPEC"]
