"""StepRecord: a row of steps.csv. Finding: a line of `neaptide doctor`. Imports no torch."""

from __future__ import annotations

from typing import Literal, get_args

import attrs

from neaptide.text import one_line

Level = Literal["ok", "note", "warning", "error"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""The levels of a finding, least serious first. After `error`, `neaptide doctor` exits with 1."""


@attrs.frozen
class StepRecord:
    """A row of steps.csv: an ordinary update, or an accepted jump (a predicted update)."""

    step: int
    """The number of the update; for a jump, the number of the update after the jump."""
    phase: str
    loss: float
    """Mean training loss of the batch; for a jump, the loss after the jump."""
    was_predicted: bool
    """True if the row is an accepted jump."""
    grad_norm: float | None = None
    """L2 norm of the gradients before clipping; None if this norm was not measured."""
    confidence: float | None = None
    seconds: float = 0.0
    device_bytes: int | None = None
    host_bytes: int | None = None
    __repr__ = one_line


COLUMNS = tuple(field.name for field in attrs.fields(StepRecord))
"""The columns of steps.csv."""


@attrs.frozen
class Finding:
    """The result of one check of the machine, with advice if the check found a problem."""

    level: Level = attrs.field(validator=attrs.validators.in_(LEVELS))
    """`note`: an optional part is missing; `warning`: time or memory is lost; `error`: a fault."""
    what: str
    """The name of the checked part, such as `NVML` or `scikit-learn`."""
    detail: str
    """The result, one line."""
    advice: str | None = None
    """The command or change that solves the problem; None if there is no problem."""
    __repr__ = one_line
