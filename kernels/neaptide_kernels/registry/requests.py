"""What runs and programs ask for: a provider of an op by name, and whether to tune."""

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
    """Those that are open; of several the newest counts."""

    def __init__(self) -> None:
        self._open: list[_Request] = []

    @contextmanager
    def made(self, tuning: Tuning | None, providers: Mapping[str, str]) -> Iterator[None]:
        """Ask inside `with`; requests may end in any order."""
        request = _Request(providers, tuning)
        self._open.append(request)
        try:
            yield
        finally:
            self._open.remove(request)

    def provider_of(self, op: str) -> str | None:
        """Return the provider that is asked for, if any."""
        asked = (one.providers.get(op) for one in reversed(self._open))
        return next((name for name in asked if name is not None), None)

    @property
    def tuning(self) -> Tuning:
        """How to tune; by what was measured before where nobody asks."""
        return next((one.tuning for one in reversed(self._open) if one.tuning), "cached")
