"""Activation checkpointing in segments of blocks, exact to the bit."""

from .config import SPEC

__all__ = ["SPEC"]
