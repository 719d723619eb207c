"""Turns another framework's settings into a configuration: the core's keys, then each plugin's.

Whoever has a counterpart takes the keys it stands for; what nobody takes is reported.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from neaptide.config.hooks import structure_as
from neaptide.config.tables import at, leaves
from neaptide.config.values import Problem, dotted, gathering, got, hint, too_deep
from neaptide.errors import ConfigError, PluginError

from . import deepspeed

if TYPE_CHECKING:
    from collections.abc import Callable

    from neaptide.config.values import KeyPath
    from neaptide.plugin import PluginSpec

T = TypeVar("T")

AUTO = "auto"


class Source:
    """The settings to convert, and what has been made of them so far.

    Paths are dotted. A value of `"auto"`, which the Hugging Face Trainer fills in, is no value.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.taken: set[str] = set()
        self.notes: dict[str, str] = {}
        self.problems: list[Problem] = []

    def look(self, path: str, kind: type[T]) -> T | None:
        """Return a value, or None where it is absent; one of another type becomes a problem."""
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
        """Return whether a value, or a table that would hold it, is left to somebody else."""
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
        """Return a value as `look` does; it now has a counterpart."""
        value = self.look(path, kind)
        if value is not None:
            self.taken.add(path)
        return value

    def refuse(self, path: str, text: str) -> None:
        """Say why the settings cannot be converted, at one key."""
        self.problems.append(Problem(text, tuple(path.split("."))))

    def note(self, path: str, text: str) -> None:
        """Say what differs, or why there is no counterpart, for a key or all keys below it."""
        self.notes[path] = text


@attrs.frozen
class Remark:
    """A key that has no counterpart, or one that does not mean quite the same."""

    key: str
    value: Any
    carried: bool
    text: str


@attrs.frozen
class Translation:
    """The table of a configuration, and a remark on each key that is not simply in it."""

    table: dict[str, Any]
    remarks: tuple[Remark, ...]


FRAMEWORKS: dict[str, Callable[[Source], dict[str, Any]]] = {"deepspeed": deepspeed.convert}
"""What the core itself makes of each framework's settings."""
_SIGNS = {"deepspeed": deepspeed.SIGNS}


def translate(
    framework: str, settings: Mapping[str, Any], specs: Mapping[str, PluginSpec]
) -> Translation:
    """Convert settings by the core and by every plugin whose manifest `converts` them.

    Raises:
        ConfigError: for an unknown framework, or values of the wrong type, one line each.
        PluginError: if a plugin's converter cannot be loaded.
    """
    if framework not in FRAMEWORKS:
        msg = f"unknown framework {framework!r}{hint(framework, FRAMEWORKS)}"
        raise ConfigError(msg)
    if too_deep(settings):
        msg = f"the settings nest too deep to be {framework}'s"
        raise ConfigError(msg)
    source = Source(settings)
    table = {"version": 1, **FRAMEWORKS[framework](source)}
    plugins = {
        name: values
        for name, spec in specs.items()
        if framework in spec.converts
        and (values := _converter(spec, framework)(source)) is not None
    }
    if source.problems:
        raise ConfigError(*map(str, dict.fromkeys(source.problems)))
    return Translation({**table, **({"plugins": plugins} if plugins else {})}, _remarks(source))


def framework_of(settings: Mapping[str, Any]) -> str | None:
    """Return the framework whose own top-level keys are among these settings, if any."""
    return next((name for name, keys in _SIGNS.items() if keys & settings.keys()), None)


def _converter(spec: PluginSpec, framework: str) -> Callable[[Source], dict[str, Any] | None]:
    target = spec.converts[framework]
    module, _, name = target.partition(":")
    try:
        converter: Callable[[Source], dict[str, Any] | None] = getattr(
            importlib.import_module(module), name
        )
    except Exception as error:
        msg = f"plugin {spec.name!r}: {target!r} raised {type(error).__name__}: {error}"
        raise PluginError(msg) from error
    return converter


def _remarks(source: Source) -> tuple[Remark, ...]:
    remarks = []
    for path in leaves(source.settings):
        key, value = ".".join(map(str, path)), at(source.settings, path)
        if value is None:
            continue
        carried = key in source.taken
        text = source.notes.get(key, "") if carried else _nearest(source.notes, path)
        if value == AUTO:
            text = '"auto" is filled in by the Hugging Face Trainer; write the value yourself'
        if not carried or text:
            remarks.append(Remark(dotted(path), value, carried, text or "no counterpart"))
    return tuple(remarks)


def _nearest(notes: Mapping[str, str], path: KeyPath) -> str:
    """Return the note on a key, or else on the table closest around it."""
    prefixes = (".".join(map(str, path[:end])) for end in range(len(path), 0, -1))
    return next((notes[prefix] for prefix in prefixes if prefix in notes), "")
