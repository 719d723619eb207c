"""The schedule of the learning rate, for plugins that look ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from neaptide.api.stash import StashKey

if TYPE_CHECKING:
    from neaptide.api.stash import Stash

RateFactor = Callable[[int], float]
"""Maps a number of updates to the factor of the peak rate in the update that follows them."""

RATE_FACTOR: StashKey[RateFactor] = StashKey("learning-rate.factor")
"""The schedule of the run. The plugin that sets the rate stores it in `on_run_start`."""


def rate_factor(stash: Stash) -> RateFactor:
    """Return the schedule of a run; its factor is 1 if no plugin has stored one.

    The stash is read at each call, because plugins start in any order.
    """

    def factor(updates: int) -> float:
        schedule = stash.get(RATE_FACTOR)
        return 1.0 if schedule is None else schedule(updates)

    return factor
