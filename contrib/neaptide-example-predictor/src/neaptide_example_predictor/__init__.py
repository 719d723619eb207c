"""An update predictor for Neaptide that continues the running mean of the recent updates."""

from .config import SPEC

__all__ = ["SPEC"]
