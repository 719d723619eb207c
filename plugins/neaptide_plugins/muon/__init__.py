"""An optimizer: Muon updates the weight matrices of hidden layers, AdamW all other parameters."""

from .config import SPEC

__all__ = ["SPEC"]
