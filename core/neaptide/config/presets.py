"""Finds presets: TOML files in the packages that distributions name as `neaptide.presets`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from neaptide.config.values import hint
from neaptide.errors import ConfigError, PluginError
from neaptide.plugin import shipped

GROUP = "neaptide.presets"


@cache
def offered() -> dict[str, str | ConfigError]:
    """Return each preset's TOML by name, or what is wrong with it.

    A package that cannot be read is there under the name of its entry point.
    """
    found: dict[str, str | ConfigError] = {}
    homes: dict[str, str] = {}
    for one in shipped(GROUP).values():
        try:
            package = one.load()
            if not hasattr(package, "__path__"):
                msg = f"{one.target!r} is no package"
                raise PluginError(msg)  # noqa: TRY301 - told like every other fault
            entries = [entry for entry in files(package).iterdir() if entry.name.endswith(".toml")]
        except (PluginError, OSError) as error:
            found[one.name] = _unusable(one.name, f"{one.distribution}: {error}")
            continue
        for entry in entries:
            name = entry.name.removesuffix(".toml")
            try:
                found[name] = entry.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                found[name] = _unusable(name, f"{one.distribution}: {error}")
            if name in homes:
                both = f"{homes[name]} and {one.distribution}"
                why = f"{both} both ship a preset of this name; uninstall one"
                found[name] = _unusable(name, why)
            homes[name] = one.distribution
    return {name: found[name] for name in sorted(found)}


def _unusable(name: str, why: str) -> ConfigError:
    return ConfigError(f"preset {name!r} cannot be used: {why}")


def names() -> list[str]:
    """Return the names of all usable presets, sorted."""
    return [name for name, found in offered().items() if isinstance(found, str)]


def text(name: str) -> str:
    """Return a preset's TOML, comments included; ConfigError for an unknown or unusable name."""
    if name not in offered():
        msg = f"unknown preset {name!r}{hint(name, names())}"
        raise ConfigError(msg)
    found = offered()[name]
    if isinstance(found, ConfigError):
        raise found
    return found
