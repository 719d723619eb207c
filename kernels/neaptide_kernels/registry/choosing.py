"""Chooses a provider, and explains the choice."""

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
    """The chosen provider of a call, the provider's config, and the reason for the choice."""

    provider: Provider
    config: Mapping[str, Any]
    why: str

    __repr__ = one_line


@attrs.frozen
class Judged:
    """The part of an explanation that is about one provider."""

    provider: str
    reason: str
    """Why the provider is refused; empty if the provider is usable."""
    priority: int
    seconds: float | None
    """Measured time of calls of this size; None if no time was measured."""
    workspace_bytes: int | None
    """Number of bytes that a call allocates in addition to the results; None for a refused
    provider."""

    __repr__ = one_line

    @property
    def usable(self) -> bool:
        """True if the provider could run the call."""
        return not self.reason


@attrs.frozen
class Explanation:
    """The provider that would run a call, and for each other provider why it would not run."""

    op: str
    chosen: str
    why: str
    providers: tuple[Judged, ...]

    __repr__ = one_line


def judge(provider: Provider, reason: str, seconds: Mapping[str, float], query: Query) -> Judged:
    """Return a provider's part of an explanation; an empty `reason` means a usable provider."""
    workspace = None if reason else provider.workspace_bytes(query)
    return Judged(provider.name, reason, provider.priority, seconds.get(provider.name), workspace)


def fastest(usable: Mapping[str, Provider], timings: Iterable[Timing], query: Query) -> Choice:
    """Choose the provider with the fastest timing or, without timings, with the highest priority.

    If a provider is newer than its timing, the timings do not count: it may be the fastest one now.

    Args:
        usable: providers that support the call, by name, including the reference.
        timings: timings of calls of this size, fastest first.
        query: the call.
    """
    known = [timing for timing in timings if timing.provider in usable]
    valid = [each for each in known if each.version == usable[each.provider].version]
    if valid and {each.provider for each in valid} == {each.provider for each in known}:
        return Choice(usable[valid[0].provider], valid[0].config, "the fastest one measured")
    worth = [each for each in usable.values() if each.fewest(query) <= query.bucket]
    first = max(worth, key=lambda provider: provider.priority)
    why = "the highest priority" if len(worth) > 1 else "the only one"
    if len(worth) < len(usable):
        why += " for so few elements"
    return Choice(first, next(iter(first.configs(query)), {}), why)


def configured(provider: Provider, timings: Iterable[Timing], query: Query) -> Mapping[str, Any]:
    """Return the provider's config with the fastest timing; without timings, the first config."""
    for timing in timings:
        if timing.provider == provider.name and timing.version == provider.version:
            return timing.config
    return next(iter(provider.configs(query)), {})
