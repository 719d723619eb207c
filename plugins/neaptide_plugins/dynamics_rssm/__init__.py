"""Forecasts the loss by rollouts of recurrent models that learn during the run."""

from .config import SPEC

__all__ = ["SPEC"]
