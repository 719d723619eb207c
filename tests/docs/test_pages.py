"""Links lead somewhere, blocks of TOML load, blocks of Python run."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

import pytest
from pages import DOCS, PAGES, READMES, ROOT, anchors, blocks, indented, links, text_of

from neaptide.enabling import configured

if TYPE_CHECKING:
    from pathlib import Path

    from pages import Block

FENCED = [block for page in PAGES for block in blocks(page)]
TOML = [block for block in FENCED if block.language == "toml" and block.file is None]
PYTHON = [block for block in FENCED if block.language == "python"]

COMMANDS = """\
pip install -c constraints.txt . && neaptide run examples/quickstart.toml
pip install tox && tox
"""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert [] == broken


def test_every_page_of_the_documentation_is_reached_from_the_index() -> None:
    reached, queue = set(), [ROOT / "docs" / "index.md"]
    while queue:
        page = queue.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        queue += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link]
    fragments = set((ROOT / "docs" / "changelog").glob("*.md"))
    assert set() == set(DOCS) - fragments - reached


@pytest.mark.parametrize("block", TOML, ids=str)
def test_toml_blocks_are_configurations(block: Block) -> None:
    configured(tomllib.loads(block.text))


@pytest.mark.parametrize("page", READMES, ids=lambda page: page.parent.name)
def test_toml_in_plugin_readmes_enables_the_plugin(page: Path) -> None:
    name = page.parent.name.replace("_", "-")
    for block in indented(page):
        if block.startswith("["):
            config, _ = configured(tomllib.loads(block))
            assert name in config.plugins


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python_blocks_compile(block: Block) -> None:
    compile(block.text, str(block), "exec")


@pytest.mark.parametrize("block", [block for block in PYTHON if block.runs], ids=str)
def test_marked_python_blocks_run(block: Block, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", block.text],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_readme_begins_with_the_two_commands() -> None:
    assert text_of(ROOT / "README.md").startswith(f"# Neaptide\n\n```sh\n{COMMANDS}```\n")


def test_readme_shows_the_output_of_the_quickstart() -> None:
    text = text_of(ROOT / "README.md")
    _, _, after = text.partition("<!-- quickstart output -->\n")
    shown, closed, _ = after.partition("<!-- /quickstart output -->")
    assert closed
    assert shown.strip()
