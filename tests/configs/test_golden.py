"""Configurations of every version load to the values they had then; see README.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from golden import FILES, VERSIONS, effective_file, loaded, stored
from jsonschema import Draft202012Validator
from pages import ROOT as REPOSITORY

from neaptide import RunConfig
from neaptide.config import all_formats, presets, unstructure
from neaptide.config.tables import at, leaves
from neaptide.config.values import dotted
from neaptide.hooks.registry import installed_plugins
from neaptide_verbs.schema.json_schema import json_schema

if TYPE_CHECKING:
    from pathlib import Path

INSTALLED = installed_plugins()
FIRST_PARTY = {
    name: INSTALLED[name]
    for name, found in INSTALLED.installed.items()
    if found.target.startswith("neaptide_plugins.")
}
each_file = pytest.mark.parametrize(
    "path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}"
)


def bits(value: Any) -> str:
    # JSON tells 1 from 1.0 from true, and 0.0 from -0.0.
    return json.dumps(value, sort_keys=True)


@each_file
def test_every_value_is_what_it_was(path: Path) -> None:
    now, expected = loaded(path), stored(path)
    table = unstructure(now.config)
    assert list(expected["plugins"]) == list(table["plugins"])
    for place in leaves(expected):
        assert bits(at(expected, place)) == bits(at(table, place)), dotted(place)
    new = {dotted(place) for place in leaves(table)} - {dotted(place) for place in leaves(expected)}
    assert {} == {place: now.origins[place] for place in new if now.origins[place] != "default"}


@each_file
def test_it_is_valid_under_the_schema_before_and_after(path: Path) -> None:
    validator = Draft202012Validator(json_schema(INSTALLED)[0])
    notation = next(entry for entry in all_formats().values() if path.suffix in entry.suffixes)
    validator.validate(notation.loads(path.read_text(encoding="utf-8")))
    validator.validate(stored(path))


def test_every_file_has_what_it_came_to_and_the_other_way_round() -> None:
    written = {path for version in VERSIONS for path in (version / "effective").iterdir()}
    assert {effective_file(path) for path in FILES} == written


def settings(cls: type[Any], *path: str) -> set[str]:
    """Return the dotted paths of all settings of a class and its sections."""
    found: set[str] = set()
    for field in attrs.fields(cls):
        inner = getattr(field.default, "factory", None)
        if isinstance(inner, type) and attrs.has(inner):
            found |= settings(inner, *path, field.alias)
        else:
            found.add(dotted((*path, field.alias)))
    return found


def test_the_coming_version_has_a_file_with_every_setting() -> None:
    wanted = settings(RunConfig) - {"plugins"}
    for name, spec in FIRST_PARTY.items():
        wanted |= settings(spec.config, "plugins", name)
        for target, cls in spec.options.items():
            wanted |= settings(cls, *target.split(":"))
    present: set[str] = set()
    for path in (path for path in FILES if path.parent == VERSIONS[-1]):
        now = loaded(path)
        paths = [place for place in now.origins if now.origins[place] == str(path)]
        present |= {*paths, *(place.rpartition(".")[0] for place in paths)}  # of tables, too
        for kind in ("model", "data"):
            section = getattr(now.config, kind)
            scheme, _, target = section.name.partition(":")
            if scheme:
                target = target if scheme == "builtin" else "*"  # one class for all names
                present |= {dotted((kind, target, key)) for key in section.options}
        optimizer = now.config.optimizer
        present |= {dotted(("optimizer", optimizer.name, key)) for key in optimizer.options}
    missing = sorted(wanted - present)
    assert [] == missing, f"add these to a file in {VERSIONS[-1].name}, as README.md says"


def test_the_coming_version_has_the_defaults_of_every_plugin() -> None:
    path = VERSIONS[-1] / "plugins-defaults.yaml"
    assert FIRST_PARTY.keys() == loaded(path).config.plugins.keys(), "as README.md says"


def test_the_coming_version_has_every_preset_as_it_is() -> None:
    for name in presets.names():
        path = VERSIONS[-1] / f"preset-{name}.toml"
        assert presets.text(name) == path.read_text(encoding="utf-8")
    quickstart = (REPOSITORY / "examples" / "quickstart.toml").read_text(encoding="utf-8")
    assert quickstart == (VERSIONS[-1] / "readme-quickstart.toml").read_text(encoding="utf-8")
