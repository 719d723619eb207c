"""The registry of installed plugins: reads entry points and imports only manifests, not torch."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint

import attrs

from neaptide.errors import PluginError, suggest
from neaptide.plugin import ENTRY_POINT_GROUP, Plugin, PluginSpec, ShippedEntry, shipped

DISABLED_VARIABLE = "NEAPTIDE_DISABLED_PLUGINS"


@attrs.frozen
class Installed:
    """An installed plugin: its manifest, or the reason why the manifest cannot be used."""

    name: str
    distribution: str
    """`"name version"` of the distribution that ships the plugin."""
    target: str
    spec: PluginSpec | None
    problem: str | None = None
    """The reason why the manifest cannot be used, or None."""
    rival: str | None = None
    """`"name version"` of another distribution that ships a plugin of the same name."""


class Registry(Mapping[str, PluginSpec]):
    """A dict from names to manifests. A broken manifest raises an error only when it is read."""

    def __init__(self, installed: Mapping[str, Installed]) -> None:
        self.installed = installed

    def __getitem__(self, name: str) -> PluginSpec:
        """Return the manifest of `name`; KeyError if not installed, PluginError if broken."""
        found = self.installed[name]
        if found.spec is None:
            msg = f"plugin {name!r} from {found.distribution} cannot be used: {found.problem}"
            raise PluginError(msg)
        return found.spec

    def __iter__(self) -> Iterator[str]:
        return iter(self.installed)

    def __len__(self) -> int:
        return len(self.installed)

    def usable(self) -> dict[str, PluginSpec]:
        """Return the manifests that have no problem, by name."""
        return {name: found.spec for name, found in self.installed.items() if found.spec}

    def for_scheme(self, scheme: str, where: str) -> PluginSpec:
        """Return the plugin that has `scheme`, such as `"model:builtin"`, in `PluginSpec.schemes`.

        PluginError if no plugin, or more than one plugin, has `scheme`.
        """
        usable = self.usable()
        holders = [spec for spec in usable.values() if scheme in spec.schemes]
        if len(holders) == 1:
            return holders[0]
        kind, _, name = scheme.partition(":")
        every = [entry.partition(":") for spec in usable.values() for entry in spec.schemes]
        known = sorted(known_name for known_kind, _, known_name in every if known_kind == kind)
        if holders:
            names = " and ".join(repr(spec.name) for spec in holders)
            msg = f"{names} both build {name!r}; disable one of them @ {where}"
        else:
            msg = (
                f"no installed plugin builds {name + ':'!r}{suggest(name, known)}; there is "
                f"{', '.join(known) or 'none'}, or name a 'package.module:factory' @ {where}"
            )
        raise PluginError(msg)


@cache
def installed_plugins() -> Registry:
    """Return the plugins installed in this environment, sorted by name."""
    return Registry({name: _read(one) for name, one in shipped(ENTRY_POINT_GROUP).items()})


def disabled_plugins() -> frozenset[str]:
    """Return the names in the environment variable NEAPTIDE_DISABLED_PLUGINS."""
    names = os.environ.get(DISABLED_VARIABLE, "").split(",")
    return frozenset(name.strip() for name in names if name.strip())


def disabled_strangers() -> list[str]:
    """Return an error text for each name in NEAPTIDE_DISABLED_PLUGINS that is not installed."""
    known = installed_plugins()
    unknown = sorted(disabled_plugins() - set(known))
    return [f"{name!r} is not installed{suggest(name, known)}" for name in unknown]


def _read(one: ShippedEntry) -> Installed:
    spec, problem = None, None
    try:
        value = one.load()
    except PluginError as error:
        problem = str(error)
    else:
        if not isinstance(value, PluginSpec):
            problem = f"{one.target!r} must be a PluginSpec (got {type(value).__name__})"
        elif value.name != one.name:
            problem = f"its PluginSpec is named {value.name!r} but the entry point {one.name!r}"
        else:
            spec = value
    return Installed(one.name, one.distribution, one.target, spec, problem, one.rival)


def load_class(spec: PluginSpec) -> type[Plugin[object]]:
    """Import and return the plugin class of a manifest; PluginError if the import fails."""
    try:
        loaded = ShippedEntry(EntryPoint(spec.name, spec.load, ENTRY_POINT_GROUP), "").load()
    except PluginError as error:
        msg = f"plugin {spec.name!r}: {error}"
        raise PluginError(msg) from error
    if not (isinstance(loaded, type) and issubclass(loaded, Plugin)):
        msg = f"plugin {spec.name!r}: {spec.load!r} must be a subclass of neaptide.Plugin"
        raise PluginError(msg)
    return loaded
