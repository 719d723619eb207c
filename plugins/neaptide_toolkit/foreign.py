"""Settings of another framework, and the interface for converters of such settings.

A distribution adds a framework by an entry point of the group `neaptide.converters`. The entry
point's name is the framework's name. The entry point's value is a `Converter`. A plugin converts
its own keys with a function that its manifest names in `converts`. This function takes a `Source`
and returns the plugin's table of the configuration, or None.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import attrs

from neaptide.config.hooks import structure_as
from neaptide.config.values import Problem, gathering, got
from neaptide.text import called, one_line

T = TypeVar("T")

AUTO = "auto"


class Source:
    """The settings to convert, and a record of the keys converted so far.

    A path is the keys to a value, joined by dots. The Hugging Face Trainer replaces the value
    `"auto"` by a value of its own. A `Source` treats the value `"auto"` as absent.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.taken: set[str] = set()
        self.notes: dict[str, str] = {}
        self.problems: list[Problem] = []

    def __repr__(self) -> str:
        return called(self, f"{len(self.taken)} taken", f"{len(self.problems)} problems")

    def look(self, path: str, kind: type[T]) -> T | None:
        """Return a value; None if it is absent or has a wrong type, which is also recorded."""
        value = self._at(path)
        if value is None or value == AUTO:
            return None
        if kind is int and isinstance(value, float) and value.is_integer():
            value = int(value)  # other frameworks let a count be written as 1e4
        found: list[Problem] = []
        with gathering(found):
            return structure_as(value, kind)
        self.problems += [
            attrs.evolve(problem, path=(*path.split("."), *problem.path)) for problem in found
        ]
        return None

    def is_auto(self, path: str) -> bool:
        """Return whether `"auto"` replaces the value, or a table that contains the value."""
        return bool(self._at(path) == AUTO)

    def _at(self, path: str) -> Any:
        value: Any = self.settings
        keys = path.split(".")
        for depth, key in enumerate(keys):
            if value is None or value == AUTO:
                return value
            if not isinstance(value, Mapping):
                problem = Problem(f"expected a table (got {got(value)})", tuple(keys[:depth]))
                self.problems.append(problem)
                return None
            value = value.get(key)
        return value

    def take(self, path: str, kind: type[T]) -> T | None:
        """Return a value as `look` does, and mark its key as converted."""
        value = self.look(path, kind)
        if value is not None:
            self.taken.add(path)
        return value

    def refuse(self, path: str, text: str) -> None:
        """Record why one key makes the settings impossible to convert."""
        self.problems.append(Problem(text, tuple(path.split("."))))

    def note(self, path: str, text: str) -> None:
        """Record why a key and all keys below it are not converted exactly."""
        self.notes[path] = text


def _names(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


@attrs.frozen
class Converter:
    """Converts one framework's settings to a configuration."""

    convert: Callable[[Source], dict[str, Any]]
    """Returns the sections of the configuration that the core reads.

    Each plugin converts its own keys.
    """
    signs: frozenset[str] = attrs.field(default=frozenset(), converter=_names)
    """Top-level keys that identify this framework, because no other framework has these keys."""

    __repr__ = one_line
