"""LoRA: trains small adapters beside frozen linear layers."""

from .config import SPEC

__all__ = ["SPEC"]
