"""Convert another framework's settings to a configuration: the core's keys, then the plugins'.

The core's converter and the plugins mark each key that they convert. Unmarked keys are reported.
"""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted, got, hint, too_deep
from neaptide.errors import ConfigError, PluginError, described
from neaptide.plugin import shipped
from neaptide_toolkit.foreign import AUTO, Converter, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from neaptide.config.values import KeyPath
    from neaptide.plugin import PluginSpec, ShippedEntry

GROUP = "neaptide.converters"


@attrs.frozen
class Remark:
    """A note on a key that has no counterpart, or whose counterpart has another meaning."""

    key: str
    value: Any
    carried: bool
    text: str


@attrs.frozen
class Translation:
    """The converted configuration as a table, with its remarks.

    There is a remark on each key that was not converted exactly.
    """

    table: dict[str, Any]
    remarks: tuple[Remark, ...]


def frameworks() -> list[str]:
    """Return the names of all frameworks for which a converter is installed."""
    return list(shipped(GROUP))


def translate(
    framework: str, settings: Mapping[str, Any], specs: Mapping[str, PluginSpec]
) -> Translation:
    """Convert settings with the framework's converter and with the converters of plugins.

    Raises:
        ConfigError: if the framework is unknown, or if values have the wrong type. The message has
            one line per problem.
        PluginError: if the framework's or a plugin's converter cannot be loaded.
    """
    known = shipped(GROUP)
    if framework not in known:
        msg = f"unknown framework {framework!r}{hint(framework, known)}"
        raise ConfigError(msg)
    converter = _load(known[framework])
    if too_deep(settings):
        msg = f"the settings are nested too deep to be {framework}'s"
        raise ConfigError(msg)
    source = Source(settings)
    converted = converter.convert(source)
    if not isinstance(converted, dict):
        raise _unusable(known[framework], f"it did not return a table but {got(converted)}")
    plugins = dict(converted.get("plugins", {})) | {
        name: values
        for name, spec in specs.items()
        if framework in spec.converts
        and (values := _converter(spec, framework)(source)) is not None
    }
    if source.problems:
        raise ConfigError(*map(str, dict.fromkeys(source.problems)))
    table = {"version": 1, **converted, **({"plugins": plugins} if plugins else {})}
    return Translation(table, _remarks(source))


def framework_of(settings: Mapping[str, Any]) -> str | None:
    """Return the framework that has the most identifying keys in the settings, or None."""
    found: dict[str, int] = {}
    for name, entry in shipped(GROUP).items():
        with suppress(PluginError):  # the error is reported when the user names that framework
            found[name] = len(_load(entry).signs & settings.keys())
    best = max(found, key=found.__getitem__, default=None)
    return best if best is not None and found[best] else None


def _load(entry: ShippedEntry) -> Converter:
    try:
        converter = entry.load()
    except PluginError as error:
        raise _unusable(entry, str(error)) from error
    if not isinstance(converter, Converter):
        kind = type(converter).__name__
        raise _unusable(entry, f"{entry.target!r} must be a Converter (got {kind})")
    return converter


def _unusable(entry: ShippedEntry, problem: str) -> PluginError:
    where = f"framework {entry.name!r} from {entry.distribution}"
    return PluginError(f"{where} cannot be converted: {problem}")


def _converter(spec: PluginSpec, framework: str) -> Callable[[Source], dict[str, Any] | None]:
    target = spec.converts[framework]
    module, _, name = target.partition(":")
    try:
        converter: Callable[[Source], dict[str, Any] | None] = getattr(
            importlib.import_module(module), name
        )
    except Exception as error:
        msg = f"plugin {spec.name!r}: {target!r} raised {described(error)}"
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
        if value == AUTO and not carried:
            text = '"auto" is filled in by the Hugging Face Trainer; write the value yourself'
        if not carried or text:
            remarks.append(Remark(dotted(path), value, carried, text or "no counterpart"))
    return tuple(remarks)


def _nearest(notes: Mapping[str, str], path: KeyPath) -> str:
    """Return the note on a key.

    If the key has none, return the note of the innermost enclosing table that has one, or "".
    """
    prefixes = (".".join(map(str, path[:end])) for end in range(len(path), 0, -1))
    return next((notes[prefix] for prefix in prefixes if prefix in notes), "")
