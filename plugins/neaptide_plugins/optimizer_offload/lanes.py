"""The lane (a queue of copies) that copies optimizer state between device and host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide_toolkit.offload import Copies, StreamLane, ThreadLane, Ticket, lane_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

_NAME = "optimizer-state"


class PageableLane:
    """A stream to which a separate thread submits copies.

    A copy from or to pageable memory blocks the thread that starts the copy. Here only the separate
    thread is blocked.
    """

    def __init__(self, stream: Copies) -> None:
        self._stream, self._thread = stream, ThreadLane(_NAME)

    def submit(
        self, what: str, work: Callable[[], None], after: Iterable[Ticket | None] = ()
    ) -> Ticket:
        """Queue `work` for the thread."""
        tickets = list(after)
        return self._thread.submit(what, lambda: self._stream.submit(what, work, tickets).finish())

    def close(self) -> None:
        """Finish the queued copies and end the thread."""
        self._thread.close()
        self._stream.close()


def copying_lane(device: torch.device, *, pinned: bool) -> Copies:
    """Return a lane for copies between `device` and host memory.

    The host memory is pinned if `pinned`, else pageable.
    """
    lane = lane_for(device, _NAME)
    return PageableLane(lane) if isinstance(lane, StreamLane) and not pinned else lane
