"""Data one plugin leaves for another, under typed keys that say who owns them."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

import attrs

from neaptide.text import called

T = TypeVar("T")


@attrs.frozen
class StashKey(Generic[T]):
    """A key and the type of its value. Define it once, in the module of the plugin that writes."""

    name: str
    """`"plugin-name.what"`."""


class Stash:
    """One run's values by `StashKey`."""

    def __init__(self) -> None:
        self._values: dict[StashKey[Any], Any] = {}

    def __repr__(self) -> str:
        return called(self, *(key.name for key in self._values))

    def set(self, key: StashKey[T], value: T) -> None:
        """Leave `value` under `key`, replacing what was there."""
        self._values[key] = value

    def get(self, key: StashKey[T], default: T | None = None) -> T | None:
        """Return the value under `key`, or `default`."""
        return cast("T | None", self._values.get(key, default))
