"""Presets: TOML files in the packages that the entry points `neaptide.presets` name."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from neaptide.config.values import hint
from neaptide.errors import ConfigError, PluginError
from neaptide.plugin import shipped_all

GROUP = "neaptide.presets"


@cache
def offered() -> tuple[dict[str, str], dict[str, str]]:
    """Return two dicts by preset name: the TOML texts, and the problems of unusable presets.

    If a whole package is unusable, the key is the distribution of the package: `"name version"`.
    """
    texts: dict[str, str] = {}
    problems: dict[str, str] = {}
    homes: dict[str, str] = {}
    for one in shipped_all(GROUP):
        try:
            package = one.load()
            if not hasattr(package, "__path__"):
                msg = f"{one.target!r} is not a package"
                raise PluginError(msg)  # noqa: TRY301 - reported below
            entries = [entry for entry in files(package).iterdir() if entry.name.endswith(".toml")]
        except (PluginError, OSError) as error:
            problems[one.distribution] = str(error)
            continue
        for entry in entries:
            name = entry.name.removesuffix(".toml")
            if homes.setdefault(name, one.distribution) != one.distribution:
                both = f"{homes[name]} and {one.distribution}"
                problems[name] = f"{both} both ship a preset of this name; uninstall one"
            try:
                texts[name] = entry.read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                problems[name] = f"{one.distribution}: {error}"
    return {name: texts[name] for name in sorted(texts) if name not in problems}, problems


def names() -> list[str]:
    """Return the names of all usable presets, sorted."""
    return list(offered()[0])


def text(name: str) -> str:
    """Return a preset's TOML text; raise ConfigError if the preset is unknown or unusable."""
    texts, problems = offered()
    if name in problems:
        msg = f"preset {name!r} cannot be used: {problems[name]}"
        raise ConfigError(msg)
    if name not in texts:
        broken = [f"; {what}: {why}" for what, why in problems.items() if " " in what]
        msg = f"unknown preset {name!r}{hint(name, texts)}{''.join(broken)}"
        raise ConfigError(msg)
    return texts[name]
