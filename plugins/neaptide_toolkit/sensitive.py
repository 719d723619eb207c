"""Names of the weights that low precision should not touch. No torch."""

from __future__ import annotations

SENSITIVE_WEIGHTS = ("*embed*", "lm_head.*", "*.lm_head.*", "head.*", "*.head.*", "*classifier*")
"""Patterns of qualified names. They match the layers next to the loss, the most sensitive ones."""

LARGE_ENOUGH = 1 << 18
"""In smaller matrices, rounding the factors costs more time than a product in 8 bits saves."""
