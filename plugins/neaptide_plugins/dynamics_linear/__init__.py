"""Forecasts the loss by ridge regression, learned while the run goes on."""

from .config import SPEC

__all__ = ["SPEC"]
