"""Finding: one thing `neaptide doctor` has to say, by the core or by a plugin. No torch."""

from __future__ import annotations

from typing import Literal, get_args

import attrs

Level = Literal["ok", "note", "warning", "error"]

LEVELS: tuple[Level, ...] = get_args(Level)
"""From harmless to fatal: `error` makes `neaptide doctor` exit with 1."""


@attrs.frozen
class Finding:
    """What was looked at and what was found, with the way out where something is amiss."""

    level: Level = attrs.field(validator=attrs.validators.in_(LEVELS))
    """`ok`; `note` for what is merely missing; `warning` for what costs; `error` for what fails."""
    what: str
    """The thing looked at, in a few words: `NVML`, `scikit-learn`."""
    detail: str
    """One line: what was found."""
    advice: str | None = None
    """The command or change that helps; None where nothing is amiss."""
