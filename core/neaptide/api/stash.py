"""The stash: values that one plugin stores for another plugin, under typed keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import attrs

from neaptide.text import called

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@attrs.frozen
class StashKey(Generic[T]):
    """A key and the type of its value. The plugin that writes the value defines the key."""

    name: str
    """`"plugin-name.value-name"`."""


class Stash:
    """A dict from each `StashKey` to its value, one stash per run."""

    def __init__(self) -> None:
        self._values: dict[StashKey[Any], Any] = {}
        self._listeners: dict[StashKey[Any], list[Callable[[], None]]] = {}

    def __repr__(self) -> str:
        return called(self, *(key.name for key in self._values))

    def set(self, key: StashKey[T], value: T) -> None:
        """Store `value` under `key`; replace an earlier value. Then call the key's listeners."""
        self._values[key] = value
        for listener in self._listeners.get(key, ()):
            listener()

    def on_set(self, key: StashKey[Any], listener: Callable[[], None]) -> None:
        """Call `listener()` after each later `set` of `key`."""
        self._listeners.setdefault(key, []).append(listener)

    def get(self, key: StashKey[T], default: T | None = None) -> T | None:
        """Return the value under `key`; if there is no value, return `default`."""
        return cast("T | None", self._values.get(key, default))
