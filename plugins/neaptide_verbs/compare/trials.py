"""A trial is one training run of a comparison. Its result is stored in a file."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import overlay
from neaptide.io.folder import Folder

from .schedule import of_a_share

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RESULT = "result.json"
_LARGEST = 1 << 24  # bytes of a result


@attrs.frozen
class TrainingTrial:
    """One training run. Its configuration is a nested table without a run directory."""

    label: str
    """A readable text: the side, the seed, the budget and the changes."""
    values: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Digest of everything that affects the result."""
        text = json.dumps(self.values, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def directory(self, root: Path) -> Path:
        """Return the trial's directory.

        Trials with equal configurations share a directory, even if they belong to different sides.
        """
        return root / "trials" / self.key


@attrs.frozen
class Result:
    """The result of a trial. A run that diverged has infinite losses."""

    loss: float
    """Validation loss of the final weights."""
    averaged: float | None
    """Validation loss of the weights that a plugin evaluates instead, such as the average."""
    updates: int
    """Number of ordinary updates. Each makes a backward pass of a whole batch."""
    seconds: float
    """Seconds of all steps, including jumps and bookkeeping, excluding data and evaluation."""
    jumps: int
    refused: int
    predicted: int
    """Number of updates that the accepted jumps replaced."""
    jump_seconds: float
    """The part of `seconds` in which jumps were proposed and judged, excluding the search for a
    jump's length."""
    digest: str
    threads: int
    """Number of threads with which the trial was trained."""

    @property
    def best(self) -> float:
        """The smaller of `loss` and `averaged`."""
        return self.loss if self.averaged is None else min(self.loss, self.averaged)


def trial(
    label: str, values: Mapping[str, Any], seed: int, fraction: float, changes: Mapping[str, Any]
) -> TrainingTrial:
    """Return the trial of a side with `fraction` of the configured updates and warmup.

    The decay ends with the last update of the trial. The ratio of warmup updates to all updates is
    the same as in the full run. `changes` are applied before the fraction.
    """
    values = overlay(dict(values), dict(changes))
    steps = max(1, round(values["train"]["steps"] * fraction))
    budget = {"train": {"steps": steps}, **of_a_share(values, fraction)}
    named = f"{label} seed {seed} {steps} updates"
    return TrainingTrial(named, overlay(values, {**budget, "seed": seed}))


def folder_of(directory: Path, *, make: bool = False) -> Folder:
    """Open a trial's directory. Only the directory of the comparison around it may be a link."""
    root = Folder(directory.parent.parent, make=make)
    return root.folder(directory.parent.name, make=make).folder(directory.name, make=make)


def read_result(directory: Path, trial: TrainingTrial) -> Result | None:
    """Return the stored result; None if it is missing, invalid or of another configuration."""
    try:
        found = json.loads(folder_of(directory).read(RESULT, _LARGEST))
        if found.pop("values") != json.loads(json.dumps(trial.values)):
            return None
        result = Result(**{key: _number(value) for key, value in found.items()})
        return result if _is_whole(result) else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def write_result(directory: Path, trial: TrainingTrial, result: Result) -> None:
    """Write the result and the trial's configuration atomically."""
    kept = {key: _text(value) for key, value in attrs.asdict(result).items()}
    document = json.dumps({**kept, "values": trial.values}, indent=1)
    folder_of(directory, make=True).replace(RESULT, document.encode())


def _is_whole(result: Result) -> bool:
    """Return whether every figure of the result is a valid number.

    A user may have edited the file.
    """
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
