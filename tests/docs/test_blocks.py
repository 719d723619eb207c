"""Every block of every page is right: Python runs, configurations load, commands exist."""

from __future__ import annotations

import tomllib
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
import torch
from contributed import entry_points_of, found_from
from pages import CONTRIB, PAGES, READMES, ROOT, blocks, indented
from snippets import CHECKS, WrongSnippetError, check_configuration, run_page

from neaptide import NeaptideError
from neaptide.config import presets
from neaptide.hooks.registry import installed_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pages import Block

FOLLOWED = {ROOT / "docs" / name for name in ("tutorial.md", "verbs.md", "writing-plugins.md")}
"""Pages whose files have tests of their own, which write and use them."""
FENCED = [
    block for page in PAGES for block in blocks(page) if not (block.file and block.page in FOLLOWED)
]
CHECKED = [
    block
    for block in FENCED
    if block.language in CHECKS and (block.language != "toml" or block.page not in CONTRIB)
]
ADDS_PLUGINS = [page for page in CONTRIB if "neaptide.plugins" in entry_points_of(page.parent)]
WITH_PYTHON = sorted({block.page for block in FENCED if block.language == "python"})


OPTIONAL = {"lightning.md": "lightning"}
"""Pages that need a library which an environment of tests may lack."""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
"""What torchrun sets for one process."""


@pytest.fixture(autouse=True, scope="module")
def _contrib(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Pages show verbs, presets and converters of contrib/, too."""
    with pytest.MonkeyPatch.context() as patch:
        for folder in found_from(tmp_path_factory.mktemp("site")):
            patch.syspath_prepend(folder)
        presets.offered.cache_clear()
        yield
    presets.offered.cache_clear()


def plugin_of(readme: Path) -> str:
    return readme.parent.name.replace("_", "-")


ENABLED_BY_TABLE = [
    readme for readme in READMES if not installed_plugins()[plugin_of(readme)].schemes
]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_has_somebody_who_checks_it_or_is_text(page: Path) -> None:
    known = {*CHECKS, "python", "text"}
    assert [] == [str(block) for block in blocks(page) if block.language not in known]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_block_is_only_indented(page: Path) -> None:
    """Nobody could say what language it is in."""
    assert [] == [block for block in indented(page) if block]


@pytest.mark.parametrize("block", CHECKED, ids=str)
def test_block(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    CHECKS[block.language](block.text)


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_python_of(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page.name in OPTIONAL:
        pytest.importorskip(OPTIONAL[page.name], reason=f"pip install {OPTIONAL[page.name]}")
    monkeypatch.chdir(tmp_path)
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    python = [block for block in FENCED if block.page == page and block.language == "python"]
    try:
        run_page(page, [(block.line, block.text) for block in python])
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


@pytest.mark.parametrize("page", ENABLED_BY_TABLE, ids=lambda page: page.parent.name)
def test_a_plugin_readme_shows_how_to_enable_the_plugin(page: Path) -> None:
    name = plugin_of(page)
    tables = [block.text for block in blocks(page) if block.language == "toml"]
    enabled = [plugin for table in tables for plugin in check_configuration(table, "toml")]
    assert name in enabled


@pytest.mark.parametrize("page", ADDS_PLUGINS, ids=lambda page: page.parent.name)
def test_a_readme_under_contrib_shows_how_to_enable_its_plugin(
    page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its distribution need not be installed."""
    monkeypatch.syspath_prepend(page.parent / "src")
    specs = {}
    for name, target in entry_points_of(page.parent)["neaptide.plugins"].items():
        module, _, attribute = target.partition(":")
        specs[name] = getattr(import_module(module), attribute)
    tables = [block.text for block in blocks(page) if block.language == "toml"]
    for table in tables:
        assert set(specs) <= set(check_configuration(table, "toml", *specs.values()))
    named = {name for table in tables for name in _named(tomllib.loads(table))}
    assert set(specs) == named


def _named(table: dict[str, Any]) -> set[str]:
    optimizer = table.get("optimizer", {}).get("name")
    return set(table.get("plugins", {})) | ({optimizer} if optimizer else set())


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("toml", "[plugins.ema]\ndecai = 0.9\n"),
        ("toml", '[project]\nname = "x"\ndependencies = ["neaptide[nothing]"]\n'),
        ("toml", '[project.entry-points."neaptide.plugin"]\nx = "x:SPEC"\n'),
        ("yaml", "train:\n  stepps: 3\n"),
        ("json", '{"train": {"steps": "3"}}'),
        ("sh", "neaptide ruin my.toml"),
        ("sh", "neaptide run my.toml --quite"),
        ("sh", "neaptide run my.toml --set train.stepps=3"),
        ("sh", "neaptide run --preset small"),
        ("sh", "neaptide losses runs/mine --wide 3"),
        ("sh", "neaptide ckpt sizes runs/mine"),
        ("sh", "neaptide plugins show emma"),
        ("sh", 'pip install "neaptide[nothing]"'),
        ("sh", "pip install -c constraint.txt ."),
        ("sh", "pip install tox && tox -e dox"),
        ("sh", "python bench/nothing.py"),
        ("sh", "make"),
    ],
)
def test_a_wrong_block_is_found(language: str, text: str) -> None:
    with pytest.raises((NeaptideError, WrongSnippetError)):
        CHECKS[language](text)
