"""Keeps the optimizer's state off the device in phases without updates."""

from .config import SPEC

__all__ = ["SPEC"]
