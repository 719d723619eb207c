"""Requests of runs and programs: a provider for an op by name, and the tuning mode."""

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
    """The open requests; if several are open, the newest one applies."""

    def __init__(self) -> None:
        self._open: list[_Request] = []

    @contextmanager
    def made(self, tuning: Tuning | None, providers: Mapping[str, str]) -> Iterator[None]:
        """Make a request for the duration of the context; requests may end in any order."""
        request = _Request(providers, tuning)
        self._open.append(request)
        try:
            yield
        finally:
            self._open.remove(request)

    def provider_of(self, op: str) -> str | None:
        """Return the requested provider, or None."""
        asked = (one.providers.get(op) for one in reversed(self._open))
        return next((name for name in asked if name is not None), None)

    @property
    def tuning(self) -> Tuning:
        """The requested tuning mode; by default earlier timings are used."""
        return next((one.tuning for one in reversed(self._open) if one.tuning), "cached")
