"""Learns the order in which blocks are used, so that the next blocks can be prefetched."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        found = list[int]()
        if self._last is None or count < 1:
            return found
        for _, index in self._coming():
            if index not in found and index != self._last[1]:
                found.append(index)
            if len(found) == count:
                break
        return found

    def updates(self, count: int) -> list[int]:
        """Return at most `count` blocks whose backward comes next, nearest first.

        There are none in a forward, until the use that is followed by a backward. So the state of
        the blocks is fetched when the weights of the next ones need not be: in a backward, between
        forward and backward, and between a step and the next one.
        """
        if self._last is None:
            return []
        coming = self._coming()
        first = next(coming, None)
        if first is None or "backward" not in (self._last[0], first[0]):
            return []
        backwards = (index for kind, index in chain([first], coming) if kind == "backward")
        return list(islice(backwards, count))

    def _coming(self) -> Iterator[Use]:
        """Yield the uses that are predicted, until they repeat or the host's update comes."""
        before, last = self._before, self._last
        seen = set()
        while last is not None and (before, last) not in seen:
            seen.add((before, last))
            following = self._after.get((before, last)) or self._after.get((None, last))
            if following is None or following == _PAUSE:
                return
            yield following
            before, last = last, following
