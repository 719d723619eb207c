"""Forecasts the loss with a ridge regression that learns during the run."""

from .config import SPEC

__all__ = ["SPEC"]
