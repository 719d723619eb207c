"""Weights as int8 in chosen phases, with the full weights off the device in the meantime."""

from .config import SPEC

__all__ = ["SPEC"]
