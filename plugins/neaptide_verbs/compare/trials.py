"""A trial: one training run of a comparison, and the file of its result."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import overlay
from neaptide.io.replacing import replace_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESULT = "result.json"


@attrs.frozen
class TrainingTrial:
    """One training run: a whole configuration as a nested table, without a run directory."""

    label: str
    """Text for people: side, seed, budget and changes."""
    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """A digest of everything that affects the result."""
        text = json.dumps(self.values, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def directory(self, root: Path) -> Path:
        """Return the trial's directory, equal for equal configurations of different sides."""
        return root / "trials" / self.key


@attrs.frozen
class Result:
    """The result of a trial. A run that diverged has infinite losses."""

    loss: float
    """Validation loss of the final weights."""
    averaged: float | None
    """Validation loss of the weights that a plugin puts in their place, such as their average."""
    updates: int
    """Ordinary updates: backward passes of whole batches."""
    seconds: float
    """Time of the steps, with jumps and bookkeeping, without data and evaluation."""
    jumps: int
    refused: int
    predicted: int
    """Updates that the accepted jumps replaced."""
    jump_seconds: float
    """Part of `seconds` spent on proposing and judging jumps, without searching."""
    digest: str
    threads: int
    """Number of threads of the training."""

    @property
    def best(self) -> float:
        """The smaller of `loss` and `averaged`."""
        return self.loss if self.averaged is None else min(self.loss, self.averaged)


def trial(
    label: str, values: Mapping[str, Any], seed: int, fraction: float, changes: Mapping[str, Any]
) -> TrainingTrial:
    """Return the trial of a side at a share of its budget, with its schedule scaled accordingly.

    The decay ends with the last update and the warmup keeps its share, as in a run planned with
    that budget. `changes` are applied last.
    """
    values = overlay(dict(values), dict(changes))
    steps = max(1, round(values["train"]["steps"] * fraction))
    warmup = round(values["schedule"]["warmup_steps"] * fraction)
    budget = {"train": {"steps": steps}, "schedule": {"warmup_steps": warmup}}
    named = f"{label} seed {seed} {steps} updates"
    return TrainingTrial(named, overlay(values, {**budget, "seed": seed}))


def read_result(directory: Path, trial: TrainingTrial) -> Result | None:
    """Return the result of `trial`; None if there is none, or one of another configuration."""
    try:
        found = json.loads((directory / RESULT).read_bytes())
        if found.pop("values") != json.loads(json.dumps(trial.values)):
            return None
        result = Result(**{key: _number(value) for key, value in found.items()})
        return result if _is_whole(result) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_result(directory: Path, trial: TrainingTrial, result: Result) -> None:
    """Write the result and its configuration atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    kept = {key: _text(value) for key, value in attrs.asdict(result).items()}
    document = json.dumps({**kept, "values": trial.values}, indent=1)
    replace_file(directory / RESULT, document.encode())


def _is_whole(result: Result) -> bool:
    """Return whether every figure is a valid number: users may edit the file."""
    figures = attrs.asdict(result, filter=attrs.filters.exclude("digest"))
    if figures["averaged"] is None:
        del figures["averaged"]
    if not all(type(value) in {int, float} and value == value for value in figures.values()):  # noqa: PLR0124 - not nan
        return False
    least = min(value for name, value in figures.items() if name not in {"loss", "averaged"})
    trained = result.updates > 0 or math.isinf(result.best)
    return least >= 0 and trained


def _text(value: Any) -> Any:
    return "inf" if value == float("inf") else value  # JSON has no infinity


def _number(value: Any) -> Any:
    return float("inf") if value == "inf" else value
