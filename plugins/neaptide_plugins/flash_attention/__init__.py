"""Attention without a matrix of scores, in models that call attention by torch or transformers."""

from .config import SPEC

__all__ = ["SPEC"]
