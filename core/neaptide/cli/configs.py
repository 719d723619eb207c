"""`neaptide config`: check a configuration, or show what it amounts to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App

from neaptide import config as configuration
from neaptide.enabling import configured
from neaptide.errors import ConfigError
from neaptide.registry import disabled_plugins, installed_plugins

from .output import AsJson, Preset, Sets, print_json, print_text

if TYPE_CHECKING:
    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

app = App(name="config", help="Check configurations, and show what they amount to.")


def effective(
    files: tuple[Path, ...], preset: str | None, sets: list[str] | None
) -> tuple[RunConfig, list[PluginSpec]]:
    """Return the combined config and the plugins it enables, in order; nothing is imported."""
    if not files and preset is None:
        msg = "give a configuration file or --preset NAME (see neaptide presets list)"
        raise ConfigError(msg)
    loaded = configuration.load(
        files,
        specs=installed_plugins(),
        preset=preset,
        sets=sets or (),
        environ=os.environ,
        disabled=disabled_plugins(),
    )
    return configured(loaded.config)


@app.command
def check(*files: Path, preset: Preset = None, set_: Sets = None, json: AsJson = False) -> None:
    """Check everything that can be checked before a model is built."""
    config, ordered = effective(files, preset, set_)
    names = [spec.name for spec in ordered]
    if json:
        print_json({"ok": True, "plugins": names})
    else:
        order = " -> ".join(names) or "none"
        print_text(f"ok: {config.train.steps} updates, plugins in order: {order}")


@app.command
def show(*files: Path, preset: Preset = None, set_: Sets = None, json: AsJson = False) -> None:
    """Print the combined configuration as TOML, defaults included."""
    config, _ = effective(files, preset, set_)
    plain = configuration.unstructure(config)
    if json:
        print_json(plain)
    else:
        print_text(configuration.dumps(plain))
