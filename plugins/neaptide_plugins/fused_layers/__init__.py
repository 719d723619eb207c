"""Norms, gated units and rotary embeddings of a model, computed by fused ops."""

from .config import SPEC

__all__ = ["SPEC"]
