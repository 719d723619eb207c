"""Timeline: names for a profiler of the steps, the core's parts and every plugin's hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Opener = Callable[[str, str], AbstractContextManager[Any]]
"""`opener(name, category)` returns a context manager that is entered around one part."""


class Timeline:
    """Opens a context around each part of one run, `run.timeline`; without a listener, none.

    Categories and names: `step` (`"step 12 full"`, `"step 12 predict"`), `core` (the core's own
    part of an around hook, `"around_forward"`), and a plugin's name for each of its hooks and
    middleware (`"ema: after_step"`). Contexts nest properly.
    """

    __slots__ = ("opener",)

    def __init__(self) -> None:
        self.opener: Opener | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'nobody' if self.opener is None else 'somebody'} listens)"

    def listen(self, opener: Opener) -> Callable[[], None]:
        """Enter `opener(name, category)` around every part from the next one on.

        Returns a function that ends this. RuntimeError if there is a listener already.
        """
        if self.opener is not None:
            msg = "a timeline of this run is being recorded already; end it first"
            raise RuntimeError(msg)
        self.opener = opener

        def end() -> None:
            if self.opener is opener:
                self.opener = None

        return end

    def open(self, name: str, category: str) -> AbstractContextManager[Any]:
        """Return the context of one part; an empty one without a listener."""
        return nullcontext() if self.opener is None else self.opener(name, category)
