"""Autocast with a dtype per phase, and loss scaling for fp16."""

from .config import SPEC

__all__ = ["SPEC"]
