"""What is compared, and every run that came of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .sides import Side
    from .sweep import Tuned
    from .trials import Result

STEP = math.sqrt(2.0)
"""Between two budgets."""
BUDGETS = (1 / STEP, 1.0, STEP)


@attrs.frozen
class ComparisonSettings:
    """What is compared how."""

    seeds: tuple[int, ...]
    """Reported."""
    tuning_seeds: tuple[int, ...] = (0,)
    """Swept on; none of them is reported."""
    sweeps: bool = True
    budgets: tuple[float, ...] = BUDGETS
    """Shares of the configured updates that the baseline is trained for."""
    candidate_budgets: tuple[float, ...] = (1 / STEP, 1.0)


@attrs.frozen
class ComparedRun:
    """One reported trial and what came of it."""

    side: str
    seed: int
    fraction: float
    result: Result


@attrs.frozen
class Comparison:
    """Everything that was measured."""

    settings: ComparisonSettings
    sides: tuple[Side, ...]
    """With what was tuned laid over."""
    tuned: Mapping[str, Tuned]
    runs: tuple[ComparedRun, ...]

    def of(self, side: str, fraction: float) -> list[ComparedRun]:
        """Return the runs of a side at a budget, by seed."""
        return [run for run in self.runs if run.side == side and run.fraction == fraction]
