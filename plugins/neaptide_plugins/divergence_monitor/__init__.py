"""Notices training that goes wrong, and acts before it is lost."""

from .config import SPEC

__all__ = ["SPEC"]
