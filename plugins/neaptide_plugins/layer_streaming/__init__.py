"""Streams a model's blocks between the host and the device."""

from .config import SPEC

__all__ = ["SPEC"]
