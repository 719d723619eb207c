"""Verifies a stack of plugins on a user's own model, against plain PyTorch."""

from .fewer import fewer_blocks
from .value import ModelSlice, Verification, VerifyFinding
from .verify import verify

__all__ = ["ModelSlice", "Verification", "VerifyFinding", "fewer_blocks", "verify"]
