"""Looks ahead in the cycle of phases."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide import Phase, PhaseSchedule


def steps_until(
    schedule: PhaseSchedule, predicate: Callable[[Phase], bool], limit: int
) -> int | None:
    """Return how many ordinary updates come before the next phase that satisfies `predicate`.

    0 means that the next step is in such a phase. None means that no such phase starts within
    `limit` updates. It is assumed that each jump is accepted and replaces `correction_interval`
    updates.
    """
    updates = 0
    while updates <= limit:
        phase = schedule.due()
        if predicate(phase):
            return updates
        schedule = schedule.enter(phase)
        if phase.applies_prediction:
            schedule = schedule.jumped(schedule.correction_interval)
        else:
            schedule = schedule.updated()
            updates += 1
    return None
