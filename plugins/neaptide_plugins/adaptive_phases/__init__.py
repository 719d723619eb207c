"""Learns from judged jumps how long Full phases and jumps should be."""

from .config import SPEC

__all__ = ["SPEC"]
