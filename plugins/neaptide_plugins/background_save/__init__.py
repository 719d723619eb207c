"""Checkpoints that a thread writes while training goes on."""

from .config import SPEC

__all__ = ["SPEC"]
