"""Forecasts the loss with an ensemble of small networks that learn during the run."""

from .config import SPEC

__all__ = ["SPEC"]
