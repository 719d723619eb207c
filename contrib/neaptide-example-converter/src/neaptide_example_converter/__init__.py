"""Converts settings of the Hugging Face Trainer for Neaptide."""

from .trainer import CONVERTER

__all__ = ["CONVERTER"]
