"""Muon for the weight matrices of hidden layers, AdamW for everything else."""

from .config import SPEC

__all__ = ["SPEC"]
