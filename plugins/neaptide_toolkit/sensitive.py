"""Names of the weights that low precision had better leave alone. No torch."""

from __future__ import annotations

SENSITIVE_WEIGHTS = ("*embed*", "lm_head.*", "*.lm_head.*", "head.*", "*.head.*", "*classifier*")
"""Patterns of qualified names: where the loss is made are few products, and the finest ones."""

LARGE_ENOUGH = 1 << 18
"""Elements below which rounding the factors of a product costs what 8 bits save."""
