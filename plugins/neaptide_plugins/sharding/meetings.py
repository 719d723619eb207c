"""Exchanges at which a process also sends its rows, if another one asks for a whole tensor.

Only the first process saves. It asks for one tensor after the other, while the others wait at their
next exchange, and send their parts there. What all processes ask for, all get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import attrs

from neaptide_toolkit.ranks.group import PeerLostError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide_toolkit.ranks.group import Ranks

SAVES = ("reach", "save")
OF = ("weight", "gradient", "state", *SAVES)


@attrs.frozen
class LoanRequest:
    """What a process asks for: a tensor of the span `number`, or its state.

    Or, of all processes, something for a save; then `number` is the process that asks.
    """

    number: int
    of: str
    writes: bool

    def as_numbers(self) -> list[float]:
        """Return it as the numbers of an exchange."""
        return [self.number, OF.index(self.of), self.writes]

    @classmethod
    def read(cls, row: Sequence[float]) -> LoanRequest:
        """Return the request whose numbers are `row`."""
        return cls(int(row[0]), OF[int(row[1])], bool(row[2]))


class HandsOut(Protocol):
    """Gathers what a request asks for, in those processes that ask."""

    def __call__(self, request: LoanRequest, takers: Sequence[int]) -> Any:
        """Return it, or None in a process that does not take it."""


@attrs.define(eq=False)
class Meetings:
    """The exchanges of processes that have parts of one model."""

    ranks: Ranks
    hand_out: HandsOut
    broken: bool = False
    """True after this process failed in a pass. The others may wait for it inside of theirs, so it
    must not wait for them."""

    def exchange(self, place: str, numbers: Sequence[float]) -> list[list[float]]:
        """Return the numbers of every process; before that, send what others ask for."""
        sent = [*numbers, *[0.0] * (3 - len(numbers))]  # a request has three
        while True:
            places, rows = self.ranks.meet(place, sent)
            if "loan" not in places:
                self.ranks.require_one_place(places, rows)
                return [row[: len(numbers)] for row in rows]
            self._serve(places, rows)

    def borrow(self, wanted: LoanRequest) -> Any:
        """Return what this process asks for; PeerLostError if the others cannot send it."""
        if self.broken:
            msg = "this process failed in a pass, and has only its rows of the weights"
            raise PeerLostError(msg)
        while True:
            served, found = self._serve(*self.ranks.meet("loan", wanted.as_numbers()))
            if served == wanted:
                return found

    def _serve(
        self, places: Sequence[str], rows: Sequence[Sequence[float]]
    ) -> tuple[LoanRequest, Any]:
        """Serve the request of the first process that asks. It goes on, and others ask again."""
        asked = [
            LoanRequest.read(row) if place == "loan" else None
            for place, row in zip(places, rows, strict=True)
        ]
        first = next(request for request in asked if request is not None)
        takers = [rank for rank, request in enumerate(asked) if request == first]
        if first.writes:  # each process writes its own rows of what all have
            self.ranks.require_equal("places", [*map(str, asked)])
        return first, self.hand_out(first, takers)
