"""Activation checkpointing in segments of blocks, with bitwise exact results."""

from .config import SPEC

__all__ = ["SPEC"]
