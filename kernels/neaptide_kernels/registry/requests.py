"""Requests of a run or a program to use a certain provider for an op, or a tuning mode."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Tuning = Literal["off", "cached", "tune"]


@attrs.frozen(eq=False)
class _Request:
    providers: Mapping[str, str]
    tuning: Tuning | None


class Requests:
    """The open requests; the newest open request applies."""

    def __init__(self) -> None:
        self._open: list[_Request] = []

    @contextmanager
    def made(self, tuning: Tuning | None, providers: Mapping[str, str]) -> Iterator[None]:
        """Keep a request open while the context is open; contexts may close in any order."""
        request = _Request(providers, tuning)
        self._open.append(request)
        try:
            yield
        finally:
            self._open.remove(request)

    def provider_of(self, op: str) -> str | None:
        """Return the name of the requested provider of an op, or None."""
        if not self._open:
            return None  # the usual case is quick
        asked = (one.providers.get(op) for one in reversed(self._open))
        return next((name for name in asked if name is not None), None)

    @property
    def tuning(self) -> Tuning:
        """The requested tuning mode. The default mode uses earlier timings."""
        return next((one.tuning for one in reversed(self._open) if one.tuning), "cached")
