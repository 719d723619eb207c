"""What a run records of an update or a jump, and the columns this has in steps.csv. No torch."""

from __future__ import annotations

import attrs


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


COLUMNS = tuple(field.name for field in attrs.fields(StepRecord))
"""The columns of steps.csv."""
