"""Judges each jump some updates after the jump, and sets the pace of the next jumps."""

from .config import SPEC

__all__ = ["SPEC"]
