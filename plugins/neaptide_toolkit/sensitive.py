"""Names of the weights that should stay in full precision. This module does not import torch."""

from __future__ import annotations

SENSITIVE_WEIGHTS = ("*embed*", "lm_head.*", "*.lm_head.*", "head.*", "*.head.*", "*classifier*")
"""Patterns of qualified names. They match embeddings and output heads, which are the most sensitive
to rounding."""

LARGE_ENOUGH = 1 << 18
"""Least number of elements of a matrix for products in 8 bits. With smaller matrices, the rounding
of the factors takes more time than the faster product saves."""
