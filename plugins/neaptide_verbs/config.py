"""`neaptide config`: check a configuration, or show it complete with defaults."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from neaptide import config as configuration
from neaptide.cli.loading import loaded
from neaptide.cli.output import AsJson, Preset, Sets, print_json, print_table, print_text
from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted
from neaptide.hooks.enabling import configured, split_name
from neaptide.io.logging import run_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from neaptide.config import RunConfig
    from neaptide.plugin import PluginSpec

FormatName = Literal["toml", "yaml", "json"]


app = App(name="config", help="Check configurations, and show them complete with defaults.")


@app.command
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
    """Check everything that needs no import of torch. With `--imports`, also check the rest.

    Neither check builds a model.
    """
    config, ordered = configured(loaded(files, preset, set_).config)
    if imports:
        _try_settings(config, ordered)
    names = [spec.name for spec in ordered]
    if json:
        print_json({"ok": True, "plugins": names})
    else:
        order = " -> ".join(names) or "none"
        print_text(f"ok: {config.train.steps} updates, plugins in order: {order}")


@app.command
def show(
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    origin: Annotated[
        bool, Parameter(negative="", help="Print the source of each value, one value per line.")
    ] = False,
    format: Annotated[  # noqa: A002 - the option's name
        FormatName, Parameter(help="Format of the output.")
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


def _try_settings(config: RunConfig, ordered: Sequence[PluginSpec]) -> None:
    """Create the plugins, create the optimizer for one weight, and import the factories.

    No model is built.
    """
    from neaptide.run import assembly  # noqa: PLC0415 - imports torch
    from neaptide.run.defaults import import_factory, try_optimizer  # noqa: PLC0415 - likewise

    sys.path.insert(0, str(Path.cwd()))  # as in `run`: only after torch has found its own modules
    hooks = assembly.create_plugins(config, ordered, run_logger())
    if hooks.left_to_core("configure_optimizer"):
        try_optimizer(config.optimizer.name, config.optimizer.lr, config.optimizer.options)
    for where, section in (("model.name", config.model), ("data.name", config.data)):
        scheme, name = split_name(section.name, ordered)
        if name and not scheme:
            import_factory(name, section.options, where)


def _print_origins(plain: dict[str, Any], origins: Mapping[str, str], *, json: bool) -> None:
    # `configured` adds the plugin that builds the named model or data set.
    added = "builds the model or data set of model.name or data.name"
    rows = [
        (dotted(path), at(plain, path), origins.get(dotted(path), added)) for path in leaves(plain)
    ]
    if json:
        keys = ("path", "value", "origin")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    # TOML and JSON write these values in the same way.
    print_table([(path, f"= {jsons.dumps(value)}", source) for path, value, source in rows])
