"""Names what runs, for whoever draws a timeline: steps, the core's parts, every plugin's hooks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Opener = Callable[[str, str], AbstractContextManager[Any]]
"""`opener(name, category)` gives the context entered around one span."""


class Timeline:
    """The spans of one run, `run.timeline`. Nobody listening, none is opened and nothing is named.

    Categories and names: `step` (`"step 12 full"`, `"step 12 predict"`), `core` (the core's own
    part of an around hook, `"around_forward"`), and a plugin's name for each of its hooks and
    middleware (`"ema: after_step"`). They nest properly.
    """

    __slots__ = ("opener",)

    def __init__(self) -> None:
        self.opener: Opener | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'nobody' if self.opener is None else 'somebody'} listens)"

    def listen(self, opener: Opener) -> Callable[[], None]:
        """Enter `opener(name, category)` around every span from the next one on.

        Returns what ends it. Raises RuntimeError while somebody else listens.
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
        """Return the context of one span; an empty one while nobody listens."""
        return nullcontext() if self.opener is None else self.opener(name, category)
