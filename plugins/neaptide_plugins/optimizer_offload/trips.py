"""The state's way out and back, with the store's true values in place while it is copied."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from .choosing import Mechanism
    from .state_tensors import Room, State


@attrs.define(eq=False)
class Trips:
    """Sends state away and brings it back. Each verb may be called at any time, and again.

    Args:
        mechanism: what moves it.
        state: `state()` returns what may leave, as it is now.
        shown: `shown()` is held while state is read, copied or rebound.
        log: told once what left and what did not.
    """

    mechanism: Mechanism
    state: Callable[[], State]
    shown: Callable[[], AbstractContextManager[None]]
    log: Any
    last: Room | None = attrs.field(init=False, default=None)
    """What left the last time, and what is taken instead."""
    _holding: ExitStack = attrs.field(init=False, factory=ExitStack)
    _told: bool = attrs.field(init=False, default=False)

    @property
    def is_away(self) -> bool:
        """Whether there is anything to bring back."""
        return self.mechanism.is_away

    def send_away(self) -> None:
        """Free the device of what may leave it."""
        if self.is_away:
            return
        with self.shown():
            state = self.state()
            self.last = self.mechanism.room(state)
            self.mechanism.leave(state)
        if not self._told and (self.is_away or self.mechanism.left):
            self._told = True
            for reason, nbytes in self.mechanism.left.items():
                self.log.warning("optimizer-offload.stays", reason=reason, bytes=nbytes)
            if self.mechanism.note is not None:
                self.log.warning("optimizer-offload.not_pinned", reason=self.mechanism.note)

    def begin(self) -> None:
        """Start to bring it back beside the computation, where there is room."""
        if not self.is_away:
            return
        self._holding.enter_context(self.shown())
        try:
            self.mechanism.begin()
        except (RuntimeError, MemoryError) as error:  # no room yet: the update tries again
            self._holding.close()
            self.log.warning("optimizer-offload.put_off", reason=str(error).partition("\n")[0])

    def bring_back(self) -> None:
        """Have it back."""
        if not self.is_away:
            return
        self._holding.enter_context(self.shown())
        try:
            self.mechanism.finish()
        finally:
            self._holding.close()

    def room(self) -> Room:
        """Return the bytes that leave and those that are taken instead."""
        with self.shown():
            return self.mechanism.room(self.state())
