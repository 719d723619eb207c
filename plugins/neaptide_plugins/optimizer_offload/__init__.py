"""The optimizer's state off the device where nothing is updated."""

from .config import SPEC

__all__ = ["SPEC"]
