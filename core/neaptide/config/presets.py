"""Finds presets: TOML files in the packages that distributions name as `neaptide.presets`."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

import attrs

from neaptide.config.values import hint
from neaptide.errors import ConfigError, PluginError
from neaptide.plugin import shipped

GROUP = "neaptide.presets"


@attrs.frozen
class Offered:
    """The presets of all distributions, and what kept some from being read."""

    texts: dict[str, str]
    """TOML by name; two distributions' presets of one name are in `problems`."""
    problems: dict[str, str]
    """Why, by preset or else by entry point."""


@cache
def offered() -> Offered:
    """Return the presets that are installed in this environment."""
    texts: dict[str, str] = {}
    problems: dict[str, str] = {}
    homes: dict[str, str] = {}
    for one in shipped(GROUP).values():
        try:
            package = files(one.load())
        except (PluginError, TypeError, ValueError) as error:
            problems[one.name] = f"{one.distribution}: {error}"
            continue
        for entry in package.iterdir():
            name, dot, suffix = entry.name.rpartition(".")
            if not dot or suffix != "toml":
                continue
            if name in homes:
                both = f"{homes[name]} and {one.distribution}"
                problems[name] = f"{both} both ship a preset of this name; uninstall one"
            homes[name] = one.distribution
            texts[name] = entry.read_text(encoding="utf-8")
    usable = {name: texts[name] for name in sorted(texts) if name not in problems}
    return Offered(usable, problems)


def names() -> list[str]:
    """Return the names of all presets, sorted."""
    return list(offered().texts)


def text(name: str) -> str:
    """Return a preset's TOML text, comments included.

    Raises ConfigError for an unknown name, and one that two distributions ship.
    """
    found = offered()
    if name in found.problems:
        msg = f"preset {name!r} cannot be used: {found.problems[name]}"
        raise ConfigError(msg)
    if name not in found.texts:
        msg = f"unknown preset {name!r}{hint(name, found.texts)}"
        raise ConfigError(msg)
    return found.texts[name]
