"""Models of Hugging Face's transformers by name."""

from .config import SPEC

__all__ = ["SPEC"]
