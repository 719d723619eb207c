"""`neaptide config`: check a configuration, or show it complete with defaults."""

from __future__ import annotations

import json as jsons
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from neaptide import config as configuration
from neaptide.cli.loading import LOG, advice, loaded
from neaptide.cli.output import AsJson, Preset, Sets, print_json, print_table, print_text
from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted
from neaptide.errors import ConfigError
from neaptide.hooks.enabling import configured, split_name
from neaptide.io.logging import run_logger
from neaptide.plugin import sole
from neaptide_toolkit.optimizers import FORMS, FUSED

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
            help="Import torch, plugins and factories, too.",
        ),
    ] = False,
    json: AsJson = False,
) -> None:
    """Check a configuration. No model is built.

    torch is imported only if the optimizer has options, if a device is named, or with `--imports`.
    """
    config, ordered = configured(loaded(files, preset, set_).config)
    warnings = [*advice(config, ordered), *_missing(config, ordered)]
    if imports or config.optimizer.options or config.train.device not in {"auto", "cpu"}:
        _try_settings(config, ordered, imports=imports)
    names = [spec.name for spec in ordered]
    if json:
        print_json({"ok": True, "plugins": names, "warnings": warnings})
    else:
        for warning in warnings:
            LOG.warning("%s", warning)
        order = " -> ".join(names) or "none"
        epochs, steps = config.train.epochs, config.train.steps
        length = f"{steps} updates" if epochs is None else f"epochs: {epochs}"
        print_text(f"ok: {length}, plugins in order: {order}")


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
        return
    text = configuration.by_name("json" if json else format).dumps(plain)
    optimizer = config.optimizer
    is_fused = optimizer.name.lower() in map(str.lower, FUSED)
    if is_fused and FORMS.isdisjoint(optimizer.options) and not json and format != "json":
        text = (
            f"{text.rstrip()}\n\n# {optimizer.name} is fused where PyTorch can fuse it; "
            f"optimizer.options.fused = false prevents that\n"
        )
    print_text(text)


def _missing(config: RunConfig, ordered: Sequence[PluginSpec]) -> Iterator[str]:
    """Yield what lacks a name, and refuse a module that is not there; import nothing."""
    for section, what in ((config.model, "model"), (config.data, "data")):
        if not section.name:
            yield f"`neaptide run` needs {what}.name; HybridTrainer takes the {what} from your code"
            continue
        scheme, name = split_name(section.name, ordered)
        module = name.partition(":")[0]
        if not scheme and not _is_there(module):
            msg = (
                f"there is no module {module!r} in the current directory or on PYTHONPATH "
                f"@ {what}.name"
            )
            raise ConfigError(msg)


def _is_there(module: str) -> bool:
    """Return whether `run` would find a module, or the package that it is in; import nothing."""
    package, *rest = module.split(".")
    path = list(sys.path)
    sys.path.insert(0, str(Path.cwd()))  # as in `run`
    try:
        named = all(part.isidentifier() for part in (package, *rest))
        return named and find_spec(package) is not None
    except ValueError:  # it is imported, and does not know from where
        return True
    finally:
        sys.path[:] = path


def _try_settings(config: RunConfig, ordered: Sequence[PluginSpec], *, imports: bool) -> None:
    """Look for the device, and create the optimizer for one weight.

    With `imports`, also create the plugins, and import the factories.
    """
    from neaptide.run import assembly  # noqa: PLC0415 - imports torch
    from neaptide.run.defaults import OPTIMIZER_GROUP, import_factory  # noqa: PLC0415 - likewise

    assembly.choose_device(config.train.device, None)
    sys.path.insert(0, str(Path.cwd()))  # as in `run`: only after torch has found its own modules
    hooks = assembly.create_plugins(config, ordered, run_logger())
    if hooks.left_to_core("configure_optimizer"):
        sole(OPTIMIZER_GROUP).check(
            config.optimizer.name, config.optimizer.lr, config.optimizer.options
        )
    if not imports:
        return
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
