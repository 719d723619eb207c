"""The settings of a comparison and all its runs."""

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
"""Factor between two neighbouring budgets."""
BUDGETS = (1 / STEP, 1.0, STEP)


@attrs.frozen
class ComparisonSettings:
    """The settings of a comparison."""

    seeds: tuple[int, ...]
    """Seeds of the reported training runs."""
    tuning_seeds: tuple[int, ...] = (0,)
    """Seeds of the tuning sweeps. Runs with these seeds are not reported."""
    sweeps: bool = True
    budgets: tuple[float, ...] = BUDGETS
    """The baseline's budgets, as shares of the configured number of updates."""
    candidate_budgets: tuple[float, ...] = (1 / STEP, 1.0)


@attrs.frozen
class ComparedRun:
    """One reported trial and its result."""

    side: str
    seed: int
    fraction: float
    result: Result


@attrs.frozen
class Comparison:
    """All sides and all runs of a comparison."""

    settings: ComparisonSettings
    sides: tuple[Side, ...]
    """The sides, with their tuned settings."""
    tuned: Mapping[str, Tuned]
    runs: tuple[ComparedRun, ...]

    def of(self, side: str, fraction: float) -> list[ComparedRun]:
        """Return a side's runs at one budget, a run for each seed."""
        return [run for run in self.runs if run.side == side and run.fraction == fraction]
