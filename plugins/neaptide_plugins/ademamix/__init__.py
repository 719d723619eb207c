"""AdamW with a second, slow average of the gradients."""

from .config import SPEC

__all__ = ["SPEC"]
