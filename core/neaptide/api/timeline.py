"""Timeline: gives a profiler the names of steps, parts of the core and hooks of plugins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from neaptide.errors import described, ends

NOTHING = nullcontext()
"""A context that does nothing; it may be open several times."""
Opener = Callable[[str, str], AbstractContextManager[Any]]
"""`opener(name, category)` returns a context manager that is entered around one part."""


class Timeline:
    """Opens a context around each part of a run, for one listener. Plugins use `run.timeline`.

    The category `step` has names such as `"step 12 full"` and `"step 12 predict"`. The category
    `core` has the core's part of each around hook, such as `"around_forward"`. For hooks and
    middleware of a plugin, the category is the plugin's name. These parts have names such as
    `"ema: after_step"`. Contexts nest.
    """

    __slots__ = ("_log", "opener")

    def __init__(self, log: Any = None) -> None:
        self.opener: Opener | None = None
        self._log = log

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'nobody' if self.opener is None else 'somebody'} listens)"

    def listen(self, opener: Opener) -> Callable[[], None]:
        """From now on, enter the context `opener(name, category)` around each part of the run.

        Returns a function that removes the listener. RuntimeError if there is a listener already.
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
        """Return the context of one part, of the listener. A listener that raises is removed."""
        return NOTHING if self.opener is None else self._part(self.opener, name, category)

    @contextmanager
    def _part(self, opener: Opener, name: str, category: str) -> Iterator[None]:
        inside = ExitStack()
        try:
            inside.enter_context(opener(name, category))
        except BaseException as error:  # noqa: BLE001 - an observer never ends a run
            self._drop(error)
        try:
            yield
        finally:
            try:
                inside.close()
            except BaseException as error:  # noqa: BLE001 - likewise
                self._drop(error)

    def _drop(self, error: BaseException) -> None:
        if ends(error):
            raise error
        opener, self.opener = self.opener, None
        if opener is not None and self._log is not None:
            self._log.warning("timeline.listener_removed", error=f"{described(error):.300}")
