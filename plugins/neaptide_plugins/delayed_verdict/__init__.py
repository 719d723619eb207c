"""Judges each jump some updates after the jump, and adjusts how far jumps go."""

from .config import SPEC

__all__ = ["SPEC"]
