"""Every hook, setting, manifest field, column and key has its line in the documentation."""

from __future__ import annotations

import csv
import inspect
import json
import re
import runpy
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from pages import PLUGINS, READMES, ROOT, anchors, headings, section, tables, text_of
from support import CYCLE, tiny_trainer

import neaptide
from neaptide import Interrupted, NeaptideError, PluginSpec, RunConfig, StepResult
from neaptide.cli import exit_codes
from neaptide.hooks import hookspecs
from neaptide.hooks.manager import _AROUND, _SPECS
from neaptide.hooks.registry import installed_plugins
from neaptide.run.signals import _SIGNALS
from neaptide_toolkit.testing import LAWS, ContractError
from neaptide_toolkit.testing.providers import PROVIDER_LAW

if TYPE_CHECKING:
    from pathlib import Path

HOOKS = ROOT / "docs" / "hooks.md"
WRITING = ROOT / "docs" / "writing-plugins.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
GENERATOR = runpy.run_path(str(ROOT / "docs" / "generate_configuration.py"))
SHIPPED = sorted(
    name
    for name, found in installed_plugins().installed.items()
    if found.target.startswith("neaptide_plugins.")
)


def signature(hook: str) -> str:
    return f"`{hook}({', '.join(inspect.signature(getattr(hookspecs, hook)).parameters)})`"


def test_exactly_the_hooks_are_documented_with_their_arguments() -> None:
    documented = [heading for heading in headings(HOOKS) if heading.startswith("`")]
    assert sorted(map(signature, _SPECS)) == sorted(documented)


@pytest.mark.parametrize("hook", sorted(_SPECS))
def test_each_hook_has_its_kind(hook: str) -> None:
    first = getattr(hookspecs, hook).neaptide_spec["firstresult"]
    kind = "first result" if first else "middleware" if hook in _AROUND else "collecting"
    expected = "fold" if hook == "estimate_memory" else kind
    assert f"- **Kind**: {expected}\n" in section(HOOKS, signature(hook))


@pytest.mark.parametrize("hook", sorted(_AROUND))
def test_each_middleware_signature_is_that_of_its_protocol(hook: str) -> None:
    protocol = getattr(neaptide, hook.title().replace("_", ""))
    call = inspect.signature(protocol.__call__)
    named = [one.name for one in call.parameters.values() if one.kind is one.KEYWORD_ONLY]
    returned = call.return_annotation.replace(" | ", " or ")
    stated = f"- **Signature**: `f(next, *, {', '.join(named)}) -> {returned}`\n"
    assert stated in section(HOOKS, signature(hook))
    assert f"`{protocol.__name__}`" in section(HOOKS, "Around")


def test_the_configuration_page_is_what_its_generator_writes() -> None:
    assert GENERATOR["render"]() == text_of(CONFIGURATION)


def documented_settings(heading: str) -> dict[str, str]:
    """Return the meaning of each key in the table below a heading of the configuration page."""
    (table,) = tables(section(CONFIGURATION, heading))
    return {row["key"].strip("`"): row["meaning"] for row in table}


def sections_of(cls: type[Any], path: str = "") -> dict[str, type[Any]]:
    """Return the classes of `cls` and its sections by the dotted path of their table."""
    found = {path: cls}
    for field in attrs.fields(cls):
        inner = getattr(field.default, "factory", None)
        if isinstance(inner, type) and attrs.has(inner):
            found |= sections_of(inner, f"{path}.{field.name}".strip("."))
    return found


CORE_SECTIONS = sections_of(RunConfig)


@pytest.mark.parametrize("path", CORE_SECTIONS)
def test_every_setting_of_the_core_is_documented_with_its_help(path: str) -> None:
    nested = {
        inner.rpartition(".")[2] for inner in CORE_SECTIONS if inner.rpartition(".")[0] == path
    }
    fields = [field for field in attrs.fields(CORE_SECTIONS[path]) if field.name not in nested]
    expected = {field.name: field.metadata["help"] for field in fields}
    heading = f"`[{path}]`" if path else "Top level"
    assert expected == (documented_settings(heading) if fields else {})


@pytest.mark.parametrize("name", SHIPPED)
def test_every_setting_of_a_plugin_is_documented_with_its_help(name: str) -> None:
    fields = attrs.fields(installed_plugins()[name].config)
    expected = {field.name: field.metadata["help"] for field in fields}
    heading = f"`[plugins.{name}]`"
    assert heading in headings(CONFIGURATION)
    assert expected == (documented_settings(heading) if expected else {})


def test_every_plugin_folder_ships_and_has_a_readme() -> None:
    folders = sorted(path.parent for path in PLUGINS.glob("*/config.py"))
    names = sorted(name.replace("-", "_") for name in SHIPPED)
    assert names == [folder.name for folder in folders]
    assert folders == sorted(readme.parent for readme in READMES)


def test_the_readme_lists_every_plugin() -> None:
    (table,) = tables(section(ROOT / "README.md", "Plugins"))
    listed = sorted(re.sub(r"\[(.*)\]\(.*\)", r"\1", row["plugin"]) for row in table)
    assert SHIPPED == listed


@pytest.mark.parametrize("name", SHIPPED)
def test_a_plugin_readme_has_exactly_its_settings_with_their_defaults(name: str) -> None:
    spec = installed_plugins()[name]
    expected = sorted(
        (field.name, GENERATOR["default_text"](field).strip("`"))
        for cls in (spec.config, *spec.options.values())
        for field in attrs.fields(cls)
    )
    readme = PLUGINS / name.replace("-", "_") / "README.md"
    shown = sorted(settings_in(readme))
    assert [setting for setting, _ in expected] == [setting for setting, _ in shown]
    differing = [pair for pair in zip(expected, shown, strict=True) if not agree(*pair)]
    assert [] == differing


def settings_in(readme: Path) -> list[tuple[str, str]]:
    """Return setting and default of each row of the tables that have both columns."""
    return [
        (row[column].strip("`"), row["default"].strip("`()"))
        for table in tables(text_of(readme))
        for row in table
        for column in ("setting", "option")
        if column in row and "default" in row
    ]


def agree(expected: tuple[str, str], shown: tuple[str, str]) -> bool:
    """Return whether two defaults are the same; `0.333…` is any number that begins so."""
    (_, value), (_, text) = expected, shown
    return value.startswith(text[:-1]) if text.endswith("…") else value == text


def test_the_manifest_table_has_every_field_with_its_default() -> None:
    (table,) = tables(section(WRITING, "The manifest"))
    empty = ([], {}, set(), frozenset(), ())
    expected = [
        (
            field.name,
            "required"
            if field.default is attrs.NOTHING
            else "none"
            if field.default in empty or isinstance(field.default, attrs.Factory)
            else getattr(field.default, "__name__", repr(field.default).replace("'", '"')),
        )
        for field in attrs.fields(PluginSpec)
    ]
    assert expected == [(row["field"].strip("`"), row["default"].strip("`")) for row in table]


def test_the_table_of_laws_is_complete() -> None:
    (table,) = tables(section(WRITING, "6. Tests"))
    assert list(LAWS) == [row["law"].strip("`") for row in table]


@pytest.mark.parametrize("law", [*LAWS, PROVIDER_LAW])
def test_a_broken_law_leads_to_its_section(law: str) -> None:
    page, _, anchor = ContractError("plugin 'mine'", law, "", "", "").see.partition("#")
    assert anchor in anchors(ROOT / page)
    parts = re.findall(r"^- \*\*(\w+)\*\*: ", section(ROOT / page, f"`{law}`"), re.MULTILINE)
    assert ["Checks", "Fails", "Mend"] == parts


def test_the_table_of_step_results_is_complete() -> None:
    table = tables(section(ROOT / "docs" / "own-loop.md", "Your own loop"))[0]
    expected = {name for name in dir(StepResult) if not name.startswith("_")}
    assert expected == {row["attribute"].strip("`") for row in table}


def test_the_run_directory_is_as_described(tmp_path: Path) -> None:
    config = {
        "run": {"dir": str(tmp_path), "log_every": 1},
        "train": {"steps": 12},
        "phases": CYCLE,
        "plugins": {"predictor-drift": {"min_window": 4, "sample_every": 1}},
    }
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches, validation=batches[:2])
    files, columns, keys = tables(section(ARCHITECTURE, "The run directory"))
    described = {row["file"].strip("`").partition("/")[0] for row in files}
    written = {path.name for path in tmp_path.iterdir()} - {".lock"}
    assert written <= described
    assert {"origins.json", "plugins"} == described - written
    with (tmp_path / "steps.csv").open(encoding="utf-8") as file:
        assert [row["column"].strip("`") for row in columns] == next(csv.reader(file))
    summary = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
    assert [row["key"].strip("`") for row in keys] == list(summary)


def test_every_exit_code_is_described() -> None:
    (table,) = tables(section(ARCHITECTURE, "Exit codes"))
    errors = {error.exit_code for error in (NeaptideError, *NeaptideError.__subclasses__())}
    signals = {Interrupted(number, "").exit_code for number in _SIGNALS}
    expected = {0, exit_codes._USAGE, exit_codes._OUT_OF_MEMORY, *errors, *signals}
    assert expected == {int(row["code"]) for row in table}


def test_the_sections_of_a_checkpoint_are_as_described(tmp_path: Path) -> None:
    trainer, batches = tiny_trainer()
    with trainer:
        trainer.step(batches[0])
        trainer.save(tmp_path / "checkpoint")
    files = {path.stem for path in (tmp_path / "checkpoint").iterdir()} - {"manifest", "weights"}
    _, _, listed = section(ARCHITECTURE, "Checkpoints").partition("Sections: ")
    assert files == set(re.findall(r"`(\w+)`", listed)) - {"stateful"}
