"""Learns the order in which blocks are used, so that the next blocks can be prefetched."""

from __future__ import annotations

from typing import Literal

UseKind = Literal["forward", "backward", "infer", "update"]
Use = tuple[UseKind, int]
"""A use of a block: the kind of the use, and the index of the block."""

_PAUSE: Use = ("update", -1)
"""Stands in the order for an update by the host, before which no block may be fetched."""


class Order:
    """Predicts the next use of a block.

    The order of uses repeats. The class looks for the last time when the two latest uses occurred
    one after the other, and predicts the use that followed. If this pair of uses did not occur
    before, the class looks only for the latest use.

    A model may skip blocks, repeat them or change their order (experts, an evaluation in between).
    After a wrong prediction the computation waits for one fetch. `note` then records the true use.
    """

    def __init__(self) -> None:
        self._after: dict[tuple[Use | None, Use], Use] = {}
        self._before: Use | None = None
        self._last: Use | None = None

    def note(self, use: Use) -> None:
        """Record a use."""
        if self._last is not None:
            self._after[self._before, self._last] = use
            self._after[None, self._last] = use
        self._before, self._last = self._last, use

    def pause(self) -> None:
        """Record that the host changes the weights of all blocks now."""
        self.note(_PAUSE)

    def ahead(self, count: int) -> list[int]:
        """Return the indices of at most `count` blocks after the current block, nearest first."""
        before, last = self._before, self._last
        if last is None:
            return []
        current, found = last[1], list[int]()
        seen = set()
        while len(found) < count and (before, last) not in seen:
            seen.add((before, last))
            following = self._after.get((before, last)) or self._after.get((None, last))
            if following is None or following == _PAUSE:
                break
            before, last = last, following
            if last[1] not in found and last[1] != current:
                found.append(last[1])
        return found
