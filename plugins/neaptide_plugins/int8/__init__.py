"""Stores weights as int8 in chosen phases; the full weights are then not on the device."""

from .config import SPEC

__all__ = ["SPEC"]
