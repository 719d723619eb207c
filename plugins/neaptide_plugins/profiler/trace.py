"""Traces a window of updates into a file for https://ui.perfetto.dev."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from .ops import TAKEN, Operators
from .timeline import TraceTimeline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    import torch

    from neaptide.io.folder import Folder

    Opener = Callable[[str, str], AbstractContextManager[Any]]
    Listen = Callable[[Opener], Callable[[], None]]

BETWEEN_STEPS = ("step", "core")
"""Categories of spans. The next span of these categories begins after all hooks of a step."""


class StepTrace:
    """Traces a window of updates by named spans, and writes the trace.

    Args:
        window: the updates, counted from 1.
        folder: the folder of `trace-<first>-<last>.json`.
        listen: `listen(opener)` enters the context `opener(name, category)` around each named part
            of the run, and returns a function that removes the listener. It raises RuntimeError if
            there is a listener already.
        device: the device whose operators are recorded, too; None records no operators.
        warn: called with a line when the trace is missing or incomplete.
    """

    def __init__(
        self,
        window: range,
        folder: Folder,
        listen: Listen,
        device: torch.device | None,
        warn: Callable[[str], None],
    ) -> None:
        self.written: str | None = None
        self._window = window
        self._folder = folder
        self._listen = listen
        self._device = device
        self._warn = warn
        self._phase: str | None = None
        self._first = self._next = 0
        self._timeline: TraceTimeline | None = None
        self._operators: Operators | None = None
        self._unlisten: Callable[[], None] | None = None
        self._stepped = self._ending = self._over = False

    def next_update(self, update: int) -> None:
        """Record the number of the next update.

        If it is the window's first update, start the trace.
        """
        self._next = update
        inside = update in self._window
        if inside and self._timeline is None and not self._over:
            self._begin(update)
        elif not inside and self._timeline is not None:
            self._ending = True  # the hooks of the last step still run

    def phase(self, name: str | None) -> None:
        """Record the phase that begins. None ends the current phase."""
        self._phase = name
        if self._timeline is not None:
            self._timeline.phase(None if self._ending else name)

    def memory(self, tiers: Iterable[tuple[str, int, int]]) -> None:
        """Record the bytes `now` of each tier; an entry is `(tier, now, mark)`."""
        if self._timeline is not None:
            self._timeline.counter("memory, MiB", {tier: now / 2**20 for tier, now, _ in tiers})

    def finish(self) -> None:
        """End the trace and write the file. The call is idempotent and raises no error."""
        timeline, operators = self._stop()
        if 0 < self._next <= self._window[0] and not self._stepped:
            self._warn(f"no trace was written: the run ended before update {self._window[0]}")
            self._next = 0
        if timeline is None or not self._stepped:
            return
        try:
            self.written = self._write(timeline, operators)
        except Exception as error:  # noqa: BLE001 - an error must not reach the training loop
            self._warn(f"the trace could not be written: {error!r}")

    def abandon(self) -> None:
        """Stop recording and write nothing; idempotent."""
        self._stop()

    def _begin(self, update: int) -> None:
        self._first = update
        try:
            self._unlisten = self._listen(self._open)
        except RuntimeError as error:
            self._over = True
            self._warn(str(error))
            return
        if self._device is not None and Operators.in_use():
            self._warn(TAKEN)
        elif self._device is not None:
            self._operators = Operators(self._device)
            self._operators.start()
        self._timeline = TraceTimeline()
        self._timeline.phase(self._phase)

    def _open(self, name: str, category: str) -> AbstractContextManager[Any]:
        if self._ending and category in BETWEEN_STEPS:
            self.finish()
        if self._timeline is None:
            return nullcontext()
        self._stepped = self._stepped or category == "step"
        if self._operators is not None:
            return self._operators.span(name)
        return self._timeline.span(name, category)

    def _stop(self) -> tuple[TraceTimeline | None, Operators | None]:
        timeline, self._timeline = self._timeline, None
        operators, self._operators = self._operators, None
        unlisten, self._unlisten = self._unlisten, None
        if timeline is not None:
            timeline.finish()
            self._over = True
        if operators is not None:
            operators.stop()
        if unlisten is not None:
            unlisten()
        return timeline, operators

    def _write(self, timeline: TraceTimeline, operators: Operators | None) -> str:
        trace = operators.trace() if operators is not None else _empty()
        base = int(trace.get("baseTimeNanoseconds", 0)) if operators is not None else None
        trace["traceEvents"] += timeline.events(timeline.started if base is None else base)
        if timeline.dropped:
            self._warn(f"the trace lacks {timeline.dropped} spans: shorten the window")
        name = f"trace-{self._first:08}-{self._window[-1]:08}.json"
        self._folder.replace(name, json.dumps(trace).encode())
        return name


def _empty() -> dict[str, Any]:
    name = {"ph": "M", "name": "process_name", "pid": os.getpid(), "args": {"name": "neaptide"}}
    return {"displayTimeUnit": "ms", "traceEvents": [name]}
