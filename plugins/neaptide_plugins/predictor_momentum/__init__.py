"""Predicts updates by coasting on at the weights' average velocity."""

from .config import SPEC

__all__ = ["SPEC"]
