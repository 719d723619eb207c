"""Judges each jump (predicted update) some updates later, and adjusts the length of jumps."""

from .config import SPEC

__all__ = ["SPEC"]
