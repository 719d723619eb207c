"""Blocks that stream between the host and the device, with the optimizer in backward."""

from .config import SPEC

__all__ = ["SPEC"]
