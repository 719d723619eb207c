"""Converts a plain table to a checked `RunConfig`, and back."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from neaptide.config.hooks import structure_as
from neaptide.config.schema import VERSIONS, RunConfig
from neaptide.config.tables import overlay
from neaptide.config.values import (
    TOO_DEEP,
    Invalid,
    Problem,
    collect,
    convert_all,
    dotted,
    gathering,
    got,
    hint,
    keyed,
    plain,
    reject,
    reject_table,
    shown,
    too_deep,
)
from neaptide.errors import ConfigError
from neaptide.renamed import names
from neaptide.text import shorten

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from neaptide.plugin import PluginSpec

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class _Switches:
    """The keys that are allowed in the table of every plugin."""

    enabled: bool = True
    preset: str | None = None


def structure(
    data: Mapping[str, Any],
    specs: Mapping[str, PluginSpec],
    *,
    disabled: frozenset[str] = frozenset(),
    origins: Mapping[str, str] | None = None,
) -> RunConfig:
    """Check a plain table and return it as a configuration.

    The result has a table for every enabled plugin. The table includes the values of the plugin's
    preset. `plugins_from` is "listed", so that the result means the same on a machine where other
    plugins are installed.

    `specs` maps names to installed plugins. Plugins named in `disabled` are not enabled.
    `origins` maps the dotted path of a value to its origin, for error texts. Raises ConfigError,
    with one line per problem.
    """
    if not isinstance(data, Mapping):
        msg = f"expected a table (got {got(data)})"
        raise ConfigError(msg)
    if too_deep(data):
        raise ConfigError(TOO_DEEP)
    version = data.get("version", VERSIONS[-1])
    # Checked before all else, because another version may have other keys.
    if type(version) is int and version not in VERSIONS:
        read = ", ".join(map(str, VERSIONS))
        msg = f"version {shown(version)} is not one this Neaptide reads (it reads {read}) @ version"
        raise ConfigError(msg)
    problems = [_moved(name, data[name]) for name in names("sections") if name in data]
    config, elsewhere = RunConfig(), {"plugins", *names("sections")}
    with gathering(problems):
        config = structure_as({k: v for k, v in data.items() if k not in elsewhere}, RunConfig)
    installed = data.get("plugins_from") == "installed"
    done, found = collect(
        [("plugins", data.get("plugins", {}))],
        lambda tables: _plugins(tables, specs, disabled, installed=installed),
    )
    if problems or found:
        known = sorted(origins or {})
        raise ConfigError(*(_line(problem, origins or {}, known) for problem in problems + found))
    return attrs.evolve(config, plugins=done["plugins"], plugins_from="listed")


def structure_options(cls: type[T], values: Mapping[str, object], *path: str) -> T:
    """Convert the table at `path`, such as `[model.options]`, to the attrs class `cls`.

    Raises ConfigError with one line per problem.
    """
    try:
        return structure_as(dict(values), cls)
    except Invalid as error:
        problems = error.problems
        for key in reversed(path):
            problems = tuple(problem.under(key) for problem in problems)
        raise ConfigError(*map(str, problems)) from None


def unstructure(config: RunConfig) -> dict[str, Any]:
    """Convert a configuration to a plain table; `structure` converts the table back, bit for bit.

    The table has no fields that are None. Sets become sorted arrays. Raises ConfigError for a value
    that TOML cannot express. Only Python code can set such a value.
    """
    try:
        table: dict[str, Any] = unstructured(config)
    except Invalid as error:
        raise ConfigError(*map(str, error.problems)) from error
    return table


def plugin_preset(name: str, table: object, specs: Mapping[str, PluginSpec]) -> Mapping[str, Any]:
    """Return the values of the preset that a plugin's `table` names; empty without a preset."""
    preset = table.get("preset") if isinstance(table, Mapping) else None
    known = specs[name].presets if name in specs else {}
    return known.get(preset, {}) if isinstance(preset, str) else {}


def _moved(section: str, table: object) -> Problem:
    """Return the problem of a section that is one no more, with what to write instead."""
    new = names("sections")[section]
    given = {**new["defaults"], **(table if isinstance(table, Mapping) else {})}
    values = {key: shown(one) for key, one in given.items() if isinstance(one, str | int | float)}
    says = f"write {new['write'].format_map({**new['defaults'], **values})}"
    instead = "delete it, it sets nothing" if given == new["defaults"] else says
    return Problem(f"[{section}] is not a section since 0.1: {instead}", (section,))


def _line(problem: Problem, origins: Mapping[str, str], ordered: Sequence[str]) -> str:
    # An array has one origin for all its items. A table has the origins of its values.
    path = dotted(problem.path)
    around = (dotted(problem.path[:end]) for end in range(len(problem.path), 0, -1))
    first = bisect_left(ordered, f"{path}.")
    inside = (known for known in ordered[first : first + 1] if known.startswith(f"{path}."))
    known = next((known for known in (*around, *inside) if known in origins), None)
    return str(problem) if known is None else f"{problem} (from {origins[known]})"


def _plugins(
    tables: object, specs: Mapping[str, PluginSpec], disabled: frozenset[str], *, installed: bool
) -> dict[str, Any]:
    if not isinstance(tables, Mapping):
        reject_table(tables)
    listed = {name: table for name, table in keyed(tables) if name not in disabled}
    if installed:
        others = [name for name in specs if name not in disabled and name not in listed]
        listed |= {name: {} for name in others if not specs[name].schemes}
    pairs = ((name, (name, table)) for name, table in listed.items())
    configs = convert_all(pairs, lambda pair: _plugin(pair[0], pair[1], specs))
    return {name: config for name, config in configs.items() if config is not None}


def _plugin(name: str, table: object, specs: Mapping[str, PluginSpec]) -> Any:
    """Return the plugin's config, or None if its table says `enabled = false`."""
    if name not in specs:
        reject(f"plugin {shorten(name)!r} is not installed{hint(name, specs, 'installed')}")
    if not isinstance(table, Mapping):
        reject_table(table)
    own = dict(keyed(table))
    given = {key: own.pop(key) for key in ("enabled", "preset") if key in own}
    problems: list[Problem] = []
    switches, config = _Switches(), None
    with gathering(problems):
        switches = structure_as(given, _Switches)
    known = specs[name].presets
    if switches.preset is not None and switches.preset not in known:
        offered = f"known: {', '.join(known)}" if known else f"{name} has none"
        message = f"unknown preset {shorten(switches.preset)!r} ({offered})"
        problems.append(Problem(message, ("preset",)))
    values = overlay(plugin_preset(name, table, specs), own)
    with gathering(problems):
        try:
            config = structure_as(values, specs[name].config)
        except Exception as error:
            error.add_note(f"while checking the settings of plugin {name!r}")
            raise
    if problems:
        raise Invalid(*problems)
    return config if switches.enabled else None


def unstructured(value: Any) -> Any:
    """Convert a value of a config class to plain types; raise Invalid if that is impossible."""
    if attrs.has(type(value)):
        return convert_all(_present(value), unstructured)
    match value:
        case Mapping():
            return convert_all(keyed(value), unstructured)
        case list() | tuple() | AbstractSet():
            items = list(convert_all(enumerate(value), unstructured).values())
            if isinstance(value, AbstractSet):
                items.sort(key=lambda item: (type(item).__name__, item))
            return items
        case enum.Enum():
            return unstructured(value.value)
        case PurePath():
            return plain(str(value))
    return plain(value)


def _present(section: attrs.AttrsInstance) -> Iterator[tuple[str, Any]]:
    """Yield the alias and value of each field, except a None that is the field's default.

    Any other None is yielded and causes an error later. If it were skipped, the default would be
    used instead of None.
    """
    for field in attrs.fields(type(section)):
        value = getattr(section, field.name)
        if field.init and (value is not None or field.default is not None):
            yield field.alias, value
