"""StepRecord, a row of steps.csv, and Finding, a line of `neaptide doctor`. Imports no torch."""

from __future__ import annotations

from typing import Literal, get_args

import attrs

from neaptide.text import one_line

Level = Literal["ok", "note", "warning", "error"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""From harmless to fatal: `error` makes `neaptide doctor` exit with 1."""


@attrs.frozen
class StepRecord:
    """A row of steps.csv: one update whose loss has reached the host, or one accepted jump."""

    step: int
    """The update; for a jump the one it came before."""
    phase: str
    loss: float
    """Mean training loss of the batch; for a jump the loss of its last probe."""
    was_predicted: bool
    """Whether this is a jump."""
    grad_norm: float | None = None
    """L2 norm before clipping, where measured."""
    confidence: float | None = None
    seconds: float = 0.0
    device_bytes: int | None = None
    host_bytes: int | None = None

    __repr__ = one_line


COLUMNS = tuple(field.name for field in attrs.fields(StepRecord))
"""The columns of steps.csv."""


@attrs.frozen
class Finding:
    """What was looked at and what was found, with the way out where something is amiss."""

    level: Level = attrs.field(validator=attrs.validators.in_(LEVELS))
    """`ok`; `note` where something optional is missing; `warning` where it costs time or memory."""
    what: str
    """The thing looked at, in a few words: `NVML`, `scikit-learn`."""
    detail: str
    """One line: what was found."""
    advice: str | None = None
    """The command or change that helps; None where nothing is amiss."""

    __repr__ = one_line
