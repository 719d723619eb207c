"""What a choice is, and how it is explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from neaptide.text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .provider import Provider
    from .query import Query
    from .timings import Timing

ASKED = "asked for"


@attrs.frozen
class Choice:
    """The provider of a call, how it is called, and why it is this one."""

    provider: Provider
    config: Mapping[str, Any]
    why: str

    __repr__ = one_line


@attrs.frozen
class Judged:
    """One provider in an explanation."""

    provider: str
    reason: str
    """Why it is refused; empty where it is usable."""
    priority: int
    seconds: float | None
    """What was measured for calls of this size; None where nothing was."""
    workspace_bytes: int | None
    """What it allocates beside the results; None where it is refused."""

    __repr__ = one_line

    @property
    def usable(self) -> bool:
        """Whether it could run the call."""
        return not self.reason


@attrs.frozen
class Explanation:
    """Which provider would run a call, and what keeps each of the others from it."""

    op: str
    chosen: str
    why: str
    providers: tuple[Judged, ...]

    __repr__ = one_line


def judge(provider: Provider, reason: str, seconds: Mapping[str, float], query: Query) -> Judged:
    """Return a line of an explanation for a provider, refused for a reason or usable."""
    workspace = None if reason else provider.workspace_bytes(query)
    return Judged(provider.name, reason, provider.priority, seconds.get(provider.name), workspace)


def fastest(usable: Mapping[str, Provider], timings: Iterable[Timing], query: Query) -> Choice:
    """Choose the fastest that was measured, else the highest priority.

    Args:
        usable: providers that support the call, by name; the reference among them.
        timings: what was measured for calls of this size, fastest first.
        query: the call.
    """
    known = tuple(timings)
    for timing in known:
        measured = usable.get(timing.provider)
        if measured is not None and measured.version == timing.version:
            return Choice(measured, timing.config, "the fastest one measured")
    first = max(usable.values(), key=lambda provider: provider.priority)
    why = "the highest priority" if len(usable) > 1 else "the only one"
    return Choice(first, next(iter(first.configs(query)), {}), why)


def configured(provider: Provider, timings: Iterable[Timing], query: Query) -> Mapping[str, Any]:
    """Return a provider's fastest config that was measured, else its first."""
    for timing in timings:
        if timing.provider == provider.name and timing.version == provider.version:
            return timing.config
    return next(iter(provider.configs(query)), {})
