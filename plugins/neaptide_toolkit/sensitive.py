"""Names of the weights that low precision should not touch. No torch."""

from __future__ import annotations

SENSITIVE_WEIGHTS = ("*embed*", "lm_head.*", "*.lm_head.*", "head.*", "*.head.*", "*classifier*")
"""Patterns of qualified names: layers next to the loss are few and the most sensitive."""

LARGE_ENOUGH = 1 << 18
"""Elements below which rounding the factors costs more than a product in 8 bits saves."""
