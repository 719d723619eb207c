"""Metrics beside the loss at evaluations."""

from .config import SPEC

__all__ = ["SPEC"]
