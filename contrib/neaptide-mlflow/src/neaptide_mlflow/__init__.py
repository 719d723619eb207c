"""Shows runs of Neaptide in MLflow."""

from .config import SPEC

__all__ = ["SPEC"]
