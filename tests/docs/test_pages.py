"""Links lead somewhere, every page can be reached, the README begins as it should."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pages import DOCS, PAGES, ROOT, anchors, links, text_of

if TYPE_CHECKING:
    from pathlib import Path

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


def test_readme_begins_with_the_two_commands() -> None:
    assert text_of(ROOT / "README.md").startswith(f"# Neaptide\n\n```sh\n{COMMANDS}```\n")


def test_readme_shows_the_output_of_the_quickstart() -> None:
    text = text_of(ROOT / "README.md")
    _, _, after = text.partition("<!-- quickstart output -->\n")
    shown, closed, _ = after.partition("<!-- /quickstart output -->")
    assert closed
    assert shown.strip()
