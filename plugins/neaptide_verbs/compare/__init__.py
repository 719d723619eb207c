"""Compares training with and without prediction, at equal backward passes and at equal time."""

from .findings import findings
from .page import comparison_page
from .pool import Pool, TrialError
from .protocol import BUDGETS, Comparison, Settings, compare
from .sides import Side, sides_of
from .text import headline, summary
from .trials import Result, Trial

__all__ = [
    "BUDGETS",
    "Comparison",
    "Pool",
    "Result",
    "Settings",
    "Side",
    "Trial",
    "TrialError",
    "compare",
    "comparison_page",
    "findings",
    "headline",
    "sides_of",
    "summary",
]
