"""Where the processes of a run are, and how fast they can exchange bytes."""

from __future__ import annotations

from collections import Counter
from functools import reduce
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


@attrs.frozen(kw_only=True)
class Processes:
    """The processes of a run, as many on each node, and the place of the one that is planned."""

    count: int
    """At least 2."""
    nodes: int = 1
    """A divisor of `count`. The first processes are on the first node."""
    link: float | None = None
    """Bytes/s that one node sends to another, in one direction; with one node, those that a process
    sends to another. None if nobody knows: there is one node, and its machine's rate counts."""
    rank: int = 0

    @property
    def on_a_node(self) -> int:
        """Return how many processes a node has."""
        return self.count // self.nodes

    def ring_rate(self, ranks: Iterable[int], peer: Any) -> Any:
        """Return the bytes/s of a ring of the processes `ranks`; None if nobody knows.

        A ring is as fast as its slowest part. If other groups have their rings between the same
        nodes, such as one for each place on a node, then they share the link.

        Args:
            ranks: the processes of one group.
            peer: bytes/s from one device of a node to another, of each machine; None if unknown.
        """
        homes = Counter(rank // self.on_a_node for rank in ranks)
        rates = []
        if max(homes.values()) > 1:
            inside = self.link if self.nodes == 1 and self.link is not None else peer
            rates += [] if inside is None else [inside]
        if len(homes) > 1 and self.link is not None:
            rates.append(self.link * min(homes.values()) / self.on_a_node)
        return reduce(np.minimum, rates) if rates else None
