"""Finds the preset configurations that ship with Neaptide."""

from __future__ import annotations

from importlib.resources import files

from neaptide.config.values import hint
from neaptide.errors import ConfigError

_DIRECTORY = files("neaptide").joinpath("presets")


def names() -> list[str]:
    """Return the names of all presets, sorted."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in _DIRECTORY.iterdir()
        if entry.name.endswith(".toml")
    )


def text(name: str) -> str:
    """Return a preset's TOML text, comments included; raise ConfigError for an unknown name."""
    known = names()
    if name not in known:
        msg = f"unknown preset {name!r}{hint(name, known)}"
        raise ConfigError(msg)
    return _DIRECTORY.joinpath(f"{name}.toml").read_text(encoding="utf-8")
