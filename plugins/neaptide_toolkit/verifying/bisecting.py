"""Finds which plugins, and which of their settings, make two runs differ."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from neaptide.errors import NeaptideError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .differences import Difference
    from .stacks import Stack

Names = frozenset[str]


class Differs(Protocol):
    """Looks for a difference in runs with some plugins of a stack."""

    def __call__(
        self, names: Names, settings: Mapping[str, Any] | None = None
    ) -> Difference | None:
        """Return the first difference; `settings` replaces the settings of plugins."""


class Choices(Protocol):
    """What can be left out, such as the plugins of a stack."""

    def closed(self, names: Iterable[str]) -> Names:
        """Return the names with those that they require."""

    def can_be(self, names: Iterable[str]) -> bool:
        """Return whether these can be there without the others."""


def guilty(stack: Choices, base: Names, candidates: Iterable[str], differs: Differs) -> list[Names]:
    """Return the smallest sets of plugins that make a difference when they join `base`.

    Plugins are tried alone, then in pairs; at last each is left out. An empty set means that
    `base` alone differs. A set includes the plugins that its plugins require.
    """
    if differs(base):
        return [frozenset()]
    left = [name for name in candidates if name not in base]
    found: list[Names] = []
    while left and differs(base | frozenset(left)):
        more = _smallest(stack, base, left, differs)
        found += more
        gone = {name for one in more for name in one}
        left = [name for name in left if not stack.closed({name}) & gone]
    return found


def _smallest(stack: Choices, base: Names, left: list[str], differs: Differs) -> list[Names]:
    for size in (1, 2):
        sets = {stack.closed(one) - base for one in combinations(left, size)}
        several = sorted(sets, key=lambda one: (len(one), sorted(one)))
        found: list[Names] = []
        for one in several:
            if any(smaller <= one for smaller in found):
                continue
            if stack.can_be(base | one) and differs(base | one):
                found.append(one)
                if size > 1:
                    break  # the rest is tried again without these
        if found:
            return found
    whole = frozenset(left)
    needed = [one for one in left if not differs(base | _without(stack, whole, one))]
    return [frozenset(needed) or whole]


def _without(stack: Choices, whole: Names, name: str) -> Names:
    return frozenset(one for one in whole if name not in stack.closed({one}))


def guilty_settings(stack: Stack, names: Names, base: Names, differs: Differs) -> tuple[str, ...]:
    """Return the settings, `plugin.setting = value`, whose default makes the difference go away."""
    found = []
    for name in sorted(names):
        own = stack.config.plugins[name]
        for field in attrs.fields(type(own)):
            value = getattr(own, field.name)
            default = getattr(type(own)(), field.name)
            if not field.init or value == default:
                continue
            try:
                changed = attrs.evolve(own, **{field.alias: default})
                seen = differs(base | names, {name: changed})
            except (NeaptideError, TypeError, ValueError):
                continue  # this setting cannot be changed alone
            if seen is None:
                found.append(f"{name}.{field.alias} = {value!r}")
    return tuple(found)
