"""Autocast with a dtype per phase, and loss scaling where it is fp16."""

from .config import SPEC

__all__ = ["SPEC"]
