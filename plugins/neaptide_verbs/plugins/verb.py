"""`neaptide plugins`: list the plugins, show their settings, and create a new one.

These verbs read manifests only.
"""

from __future__ import annotations

import json as jsons
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, Literal

import attrs
from cyclopts import App, Parameter

from neaptide.cli.output import AsJson, Offers, print_json, print_table, print_text
from neaptide.errors import PluginError, suggest
from neaptide.hooks.registry import Installed, installed_plugins

if TYPE_CHECKING:
    from neaptide.plugin import PluginSpec


Kind = Literal["observer", "predictor", "optimizer", "memory", "verb", "kernel"]

app = App(name="plugins", help="Show the installed plugins, or create a new one.")


@app.command(name="list")
def list_(*, json: AsJson = False) -> None:
    """List the installed plugins. A broken plugin is listed with its error."""
    installed = list(installed_plugins().installed.values())
    if json:
        print_json([_summary(found) for found in installed])
        return
    print_table(
        [
            (
                found.name,
                found.distribution,
                found.spec.summary if found.spec else f"BROKEN: {found.problem}",
            )
            for found in installed
        ]
    )


@app.command
def show(name: Annotated[str, Offers(installed_plugins)], /, *, json: AsJson = False) -> None:
    """Show one plugin: the roles that it claims, its effect on numerics, and its settings."""
    registry = installed_plugins()
    if name not in registry.installed:
        msg = (
            f"plugin {name!r} is not installed{suggest(name, registry.installed)}; see plugins list"
        )
        raise PluginError(msg)
    details = _details(registry[name], registry.installed[name].distribution)
    settings = _settings(registry[name])
    if json:
        print_json({**details, "settings": settings})
        return
    shown = {**details, "phases": details["phases"] or ["all"]}
    print_table([(key, _text(value)) for key, value in shown.items() if value not in ([], "")])
    if settings:
        print_text(f"\n[plugins.{name}]")
        print_table([(s["name"], _toml(s["default"]), s["type"], s["help"]) for s in settings])


@app.command
def new(
    name: Annotated[str, Parameter(help="Name of the plugin or verb, such as `gradient-noise`.")],
    /,
    *,
    kind: Annotated[
        Kind, Parameter(help="What to create; an observer, which changes nothing, is the simplest.")
    ] = "observer",
    dir_: Annotated[
        Path | None, Parameter(name="--dir", help="Directory to write; by default `./NAME`.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Create a distribution with a working plugin or verb, its tests and their CI.

    An existing directory is never overwritten.
    """
    from .new import write_new  # noqa: PLC0415 - the other verbs do not need it

    directory = dir_ or Path(name)
    files = write_new(name, kind, directory)
    if json:
        print_json({"name": name, "kind": kind, "path": str(directory), "files": files})
        return
    shown = f"neaptide {name} --help" if kind == "verb" else f"neaptide plugins show {name}"
    print_text(
        f"{directory}: {len(files)} files\n\nNext:\n\n    cd {quote(str(directory))}\n"
        f'    pip install -e ".[test]"\n    pytest\n    {shown}\n'
    )


def _summary(found: Installed) -> dict[str, Any]:
    return {
        "name": found.name,
        "distribution": found.distribution,
        "summary": found.spec.summary if found.spec else None,
        "problem": found.problem,
    }


def _details(spec: PluginSpec, distribution: str) -> dict[str, Any]:
    tolerance = f" (rtol {spec.rtol:g})" if spec.numerics == "tolerance" else ""
    return {
        "name": spec.name,
        "summary": spec.summary,
        "distribution": distribution,
        "class": spec.load,
        "state version": spec.version,
        "claims": sorted(spec.claims),
        "requires": sorted(spec.requires),
        "conflicts": sorted(spec.conflicts),
        "before": sorted(spec.before),
        "after": sorted(spec.after),
        "phases": sorted(spec.phases),
        "numerics": f"{spec.numerics}{tolerance}",
        "observer": spec.observer,
        "presets": sorted(spec.presets),
        "builds": sorted(spec.options),
    }


def _settings(spec: PluginSpec) -> list[dict[str, Any]]:
    defaults = spec.config()
    return [
        {
            "name": field.alias,
            "type": field.type
            if isinstance(field.type, str)
            else getattr(field.type, "__name__", str(field.type)),
            "default": getattr(defaults, field.name),
            "help": field.metadata.get("help", ""),
        }
        for field in attrs.fields(spec.config)
        if field.init
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _toml(value: Any) -> str:
    # TOML and JSON write these defaults in the same way, except None.
    return "not set" if value is None else f"= {jsons.dumps(value, default=str)}"
