"""Stores weights as int8 in chosen phases, in which the device holds no full weights."""

from .config import SPEC

__all__ = ["SPEC"]
