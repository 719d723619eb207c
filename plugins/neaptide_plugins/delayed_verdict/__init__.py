"""Judges jumps some updates later, and sets the pace of the next jumps."""

from .config import SPEC

__all__ = ["SPEC"]
