"""An update predictor for Neaptide: goes on along the running mean of the recent updates."""

from .config import SPEC

__all__ = ["SPEC"]
