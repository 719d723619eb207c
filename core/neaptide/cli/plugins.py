"""`neaptide plugins`: what is installed, and what it can be told. Reads manifests only."""

from __future__ import annotations

from typing import Any

import attrs
from cyclopts import App

from neaptide.errors import PluginError, suggest
from neaptide.registry import Installed, installed_plugins

from .output import AsJson, print_json, print_table, print_text

app = App(name="plugins", help="Show the installed plugins.")


@app.command(name="list")
def list_(*, json: AsJson = False) -> None:
    """List the installed plugins, broken ones with what is wrong."""
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
def show(name: str, *, json: AsJson = False) -> None:
    """Show one plugin: what it claims, how exact it is, every setting."""
    installed = installed_plugins().installed
    if name not in installed:
        msg = f"plugin {name!r} is not installed{suggest(name, installed)}; see plugins list"
        raise PluginError(msg)
    found = installed[name]
    if found.spec is None:
        installed_plugins()[name]  # raises, naming the problem
    details = _details(found)
    if json:
        print_json(details)
        return
    settings = details.pop("settings")
    print_table([(key, _shown(value)) for key, value in details.items() if value not in ([], "")])
    if settings:
        print_text(f"\n[plugins.{name}]")
        print_table([(s["name"], f"= {s['default']!r}", s["type"], s["help"]) for s in settings])


def _summary(found: Installed) -> dict[str, Any]:
    return {
        "name": found.name,
        "distribution": found.distribution,
        "summary": found.spec.summary if found.spec else None,
        "problem": found.problem,
    }


def _details(found: Installed) -> dict[str, Any]:
    spec = found.spec
    assert spec is not None, "broken plugins are refused before"
    exact = f" (rtol {spec.rtol:g})" if spec.numerics == "tolerance" else ""
    return {
        "name": spec.name,
        "summary": spec.summary,
        "distribution": found.distribution,
        "class": spec.load,
        "claims": sorted(spec.claims),
        "requires": sorted(spec.requires),
        "conflicts": sorted(spec.conflicts),
        "before": sorted(spec.before),
        "after": sorted(spec.after),
        "phases": sorted(spec.phases),
        "numerics": f"{spec.numerics}{exact}",
        "observer": spec.observer,
        "presets": sorted(spec.presets),
        "builds": sorted(spec.options),
        "settings": [
            {
                "name": field.name,
                "type": field.type
                if isinstance(field.type, str)
                else getattr(field.type, "__name__", str(field.type)),
                "default": _default(field),
                "help": field.metadata.get("help", ""),
            }
            for field in attrs.fields(spec.config)
        ],
    }


def _default(field: Any) -> Any:
    if isinstance(field.default, attrs.Factory):  # type: ignore[arg-type]  # a class at run time
        return field.default.factory()
    return None if field.default is attrs.NOTHING else field.default


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)
