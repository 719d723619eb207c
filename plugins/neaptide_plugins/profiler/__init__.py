"""Samples memory per step, phase and moment."""

from .config import SPEC

__all__ = ["SPEC"]
