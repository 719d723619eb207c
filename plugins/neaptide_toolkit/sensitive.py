"""Names of the weights that low precision should not touch. No torch."""

from __future__ import annotations

SENSITIVE_WEIGHTS = ("*embed*", "lm_head.*", "*.lm_head.*", "head.*", "*.head.*", "*classifier*")
"""Patterns of qualified names. They match embeddings and heads. These are the most sensitive to
rounding."""

LARGE_ENOUGH = 1 << 18
"""Least number of elements of a matrix for products in 8 bits. For smaller matrices, rounding the
factors takes more time than the faster product saves."""
