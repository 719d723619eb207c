"""`neaptide config`: check a configuration, or show what it amounts to."""

from __future__ import annotations

import json as jsons
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from neaptide import config as configuration
from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted
from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import (
    DISABLED_VARIABLE,
    disabled_plugins,
    disabled_strangers,
    installed_plugins,
)

from .output import AsJson, Preset, Sets, print_json, print_table, print_text

if TYPE_CHECKING:
    from neaptide.config import Loaded, RunConfig
    from neaptide.plugin import PluginSpec

FormatName = Literal["toml", "yaml", "json"]
LOG = logging.getLogger(__name__)


def app() -> App:
    """Return the verbs of `neaptide config`."""
    verbs = App(name="config", help="Check configurations, and show what they amount to.")
    verbs.command(check)
    verbs.command(show)
    return verbs


def effective(
    files: tuple[Path, ...], preset: str | None, sets: list[str] | None
) -> tuple[RunConfig, list[PluginSpec]]:
    """Return the combined config and the plugins it enables, in order; nothing is imported."""
    return configured(loaded(files, preset, sets).config)


def loaded(files: tuple[Path, ...], preset: str | None, sets: list[str] | None) -> Loaded:
    """Return the combined config with the origin of each setting; nothing is imported."""
    if not files and preset is None:
        msg = "give a configuration file or --preset NAME (see neaptide presets list)"
        raise ConfigError(msg)
    strangers = disabled_strangers()
    if strangers:
        LOG.warning("%s: %s; see neaptide plugins list", DISABLED_VARIABLE, ", ".join(strangers))
    return configuration.load(
        files,
        specs=installed_plugins(),
        preset=preset,
        sets=sets or (),
        environ=os.environ,
        disabled=disabled_plugins(),
    )


def check(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    imports: Annotated[
        bool,
        Parameter(
            negative="",
            help="Import torch, plugins and factories, too, and try the optimizer's settings.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Check everything that can be checked without importing torch; with `--imports` the rest.

    No model is built either way.
    """
    config, ordered = effective(files, preset, set_)
    if imports:
        from .training import try_settings  # noqa: PLC0415 - imports torch

        sys.path.insert(0, str(Path.cwd()))  # as `run` does
        try_settings(config, ordered)
    names = [spec.name for spec in ordered]
    if json:
        print_json({"ok": True, "plugins": names})
    else:
        order = " -> ".join(names) or "none"
        print_text(f"ok: {config.train.steps} updates, plugins in order: {order}")


def show(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    origin: Annotated[
        bool, Parameter(negative="", help="Print where each value came from, a line a value.")
    ] = False,
    format: Annotated[  # noqa: A002 - the option's name
        FormatName, Parameter(help="Notation to print in.")
    ] = "toml",
    json: AsJson = False,
) -> None:
    """Print the combined configuration, defaults included."""
    layered = loaded(files, preset, set_)
    config, _ = configured(layered.config)
    plain = configuration.unstructure(config)
    if origin:
        _print_origins(plain, layered.origins, json=json or format == "json")
    else:
        print_text(configuration.by_name("json" if json else format).dumps(plain))


def _print_origins(plain: dict[str, Any], origins: Mapping[str, str], *, json: bool) -> None:
    # What `configured` adds is the plugin behind the name of a model or a data set.
    added = "builds what model.name or data.name names"
    rows = [
        (dotted(path), at(plain, path), origins.get(dotted(path), added)) for path in leaves(plain)
    ]
    if json:
        keys = ("path", "value", "origin")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    # What a configuration holds is written alike in TOML and JSON.
    print_table([(path, f"= {jsons.dumps(value)}", source) for path, value, source in rows])
