"""`neaptide plugins check`: the contract kit on an installed plugin."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from neaptide.cli.loading import loaded
from neaptide.cli.output import AsJson, Offers, Preset, Sets, print_json, print_table
from neaptide.config import unstructure
from neaptide.errors import PluginError, suggest
from neaptide.hooks.enabling import configured
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Mapping


def check(
    name: Annotated[str, Offers(installed_plugins)],
    /,
    *files: Path,
    preset: Preset = None,
    set_: Sets = None,
    law: Annotated[
        list[str] | None, Parameter(negative="", help="Check this law only; may be repeated.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Check that an installed plugin keeps the laws of the contract kit, on a tiny task.

    With configuration files, the plugin has their settings, and the plugins that it requires are
    enabled with theirs. The exit code is 1 if a law is broken.

        neaptide plugins check ema
        neaptide plugins check layer-streaming my.toml
        neaptide plugins check my-plugin --law resume-is-exact
    """
    known = installed_plugins()
    if name not in known.installed:
        msg = f"plugin {name!r} is not installed{suggest(name, known)}; see plugins list"
        raise PluginError(msg)
    settings: Mapping[str, Any] = {}
    beside: list[str] = []
    if files or preset or set_:
        config, ordered = configured(loaded(files, preset, set_).config)
        if name not in config.plugins:
            way_out = "leave the configuration out, or add this table"
            msg = f"the configuration does not enable {name!r}; {way_out} @ plugins.{name}"
            raise PluginError(msg)
        settings = unstructure(config)["plugins"][name]
        needs = known[name].requires
        beside = [one.name for one in ordered if one.name in needs or one.claims & needs]

    from neaptide_toolkit.testing import LAWS, ContractError, check_plugin  # noqa: PLC0415 - torch

    sys.path.insert(0, str(Path.cwd()))  # as `neaptide run` does
    broken: dict[str, ContractError | None] = {}
    for one in law or LAWS:
        broken[one] = None
        with redirect_stdout(sys.stderr):  # a plugin may print
            try:
                check_plugin(name, settings, beside=beside, laws=[one])
            except ContractError as error:
                broken[one] = error
    if json:
        print_json([_told(one, error) for one, error in broken.items()])
    else:
        print_table([(one, str(error or "kept")) for one, error in broken.items()])
    return 1 if any(broken.values()) else 0


def _told(law: str, error: Any) -> dict[str, Any]:
    keys = ("tried", "came", "change", "see")
    return {"law": law, "kept": error is None} | {
        key: None if error is None else getattr(error, key) for key in keys
    }
