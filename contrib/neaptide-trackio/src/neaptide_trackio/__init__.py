"""Shows runs of Neaptide in Trackio."""

from .config import SPEC

__all__ = ["SPEC"]
