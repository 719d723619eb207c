"""One JSON Schema for a whole configuration: the core's sections and all plugins' settings."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs

from neaptide.config.schema import RunConfig
from neaptide.errors import PluginError

from .type_schema import class_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from neaptide.plugin import PluginSpec

    from .validator_schema import Schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ANY = ":*"
"""How a name ends that stands for all names of a scheme."""


@attrs.frozen
class _Part:
    """One plugin's part of the schema: its own table, and options of the objects that it builds."""

    table: Schema
    built: dict[tuple[str, str], Schema]
    """Schemas of options by kind and name, such as `("model", "builtin:byte-gpt")`."""


def json_schema(specs: Mapping[str, PluginSpec]) -> tuple[Schema, dict[str, str]]:
    """Return the schema of configurations, and the reason for each plugin that is left out.

    A plugin is left out if its manifest or settings cannot be read. The schema accepts every file
    that Neaptide reads, and every effective configuration. Rules about several keys are not part of
    the schema.
    """
    parts: dict[str, _Part] = {}
    left_out: dict[str, str] = {}
    for name in specs:
        try:
            parts[name] = _part(specs[name])
        except PluginError as error:
            left_out[name] = str(error)
        except Exception as error:  # noqa: BLE001 - a third party's classes may raise anything
            left_out[name] = f"the settings of plugin {name!r} raised {error!r}"
    return _merged(parts), left_out


def _part(spec: PluginSpec) -> _Part:
    table = class_schema(spec.config)
    table["description"] = spec.summary
    table["properties"]["enabled"] = {
        "type": "boolean",
        "default": True,
        "description": "false disables a plugin that an earlier source enabled",
    }
    if spec.presets:
        table["properties"]["preset"] = {
            "enum": [*spec.presets, None],
            "description": "initial settings; keys in the table override them",
        }
        table.pop("required", None)  # a preset may set the keys that have no default
    built = {
        (kind, name if kind == "optimizer" else f"{scheme}:{name}"): class_schema(cls)
        for (kind, _, name), cls in ((key.partition(":"), cls) for key, cls in spec.options.items())
        for scheme in _schemes(spec, kind)
    }
    return _Part(table, built)


def _schemes(spec: PluginSpec, kind: str) -> list[str]:
    entries = (entry.partition(":") for entry in sorted(spec.schemes))
    return [scheme for of, _, scheme in entries if of == kind]


def _merged(parts: Mapping[str, _Part]) -> Schema:
    schema = class_schema(RunConfig)
    sections = schema["properties"]
    sections["plugins"] |= {
        "properties": {name: part.table for name, part in parts.items()},
        "additionalProperties": False,
    }
    for kind in ("model", "data", "optimizer"):
        built = {
            name: options
            for part in parts.values()
            for (of, name), options in part.built.items()
            if of == kind
        }
        if kind != "optimizer":
            _add_names(sections[kind], built)
        _add_options(sections[kind], built)
    # Editors find a JSON file's schema by this key.
    sections["$schema"] = {"type": "string", "description": "for editors; not a setting"}
    return {"$schema": DIALECT, "title": "Neaptide configuration", **schema}


def _add_names(section: Schema, cases: Mapping[str, Schema]) -> None:
    """Add the names of the models or data sets that plugins build."""
    if not cases:
        return
    name = section["properties"]["name"]
    # A scheme with known names accepts only these names. Others are `package.module:factory`.
    taken = "|".join(sorted({re.escape(case.partition(":")[0]) for case in cases}))
    factory = {"type": "string", "pattern": f"^(?!({taken}):)"}
    of_any_name = [_named(case) for case in cases if case.endswith(_ANY)]
    known = [case for case in cases if not case.endswith(_ANY)]
    section["properties"]["name"] = {
        "anyOf": [{"enum": known}, *of_any_name, factory],
        **{key: value for key, value in name.items() if key != "type"},
    }


def _named(case: str) -> Schema:
    """Return the schema of a name: of all names of a scheme, or of one."""
    if case.endswith(_ANY):
        return {"type": "string", "pattern": f"^{re.escape(case.removesuffix('*'))}"}
    return {"const": case}


def _add_options(section: Schema, cases: Mapping[str, Schema]) -> None:
    """Add the options that each name accepts: their types and bounds, from the options class."""
    if not cases:
        return
    section["allOf"] = [
        {
            "if": {"properties": {"name": _named(case)}, "required": ["name"]},
            "then": {"properties": {"options": options}},
        }
        for case, options in cases.items()
    ]
