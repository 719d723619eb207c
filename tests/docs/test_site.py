"""What only the site has: navigation, lists out of folders, the reference of the Python API."""

from __future__ import annotations

import ast
import re
import runpy
from typing import TYPE_CHECKING

import pytest
from pages import CONTRIB, DOCS, READMES, ROOT, blocks, text_of

import neaptide
import neaptide_kernels.registry
from neaptide.hooks import hookspecs
from neaptide.hooks.manager import _SPECS
from neaptide_toolkit import low_precision, offload, recompute, testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

SITE = runpy.run_path(str(ROOT / "docs" / "site_pages.py"))
API = ROOT / "docs" / "api.rst"
PUBLIC = ("core/neaptide", "kernels/neaptide_kernels/registry", "plugins/neaptide_toolkit")
DECISIONS = ROOT / "docs" / "decisions" / "index.md"


def test_lists_of_an_index_page_become_the_navigation() -> None:
    text = "# Title\n\n- [One](one.md): first\n\n## Part\n\n- [Two](a/two.md)\n- no link\n"
    expected = [("", ["One <one>"]), ("Part", ["Two <a/two>"])]
    found = [
        (caption.removeprefix(":caption: "), entries.splitlines())
        for caption, entries in re.findall(
            r"```\{toctree\}\n:hidden:\n(:caption: \w+)?\n?\n(.*?)```",
            SITE["navigation"](text),
            re.DOTALL,
        )
    ]
    assert expected == found


def test_fragments_are_listed_by_kind(tmp_path: Path) -> None:
    (tmp_path / "b.fixed.md").write_text("A fault\nin two lines.\n", encoding="utf-8")
    (tmp_path / "a.added.md").write_text("A thing.\n", encoding="utf-8")
    expected = "\n## Added\n\n- A thing.\n\n## Fixed\n\n- A fault\n  in two lines.\n"
    assert expected == SITE["changelog"](tmp_path)


def test_every_readme_of_a_plugin_is_listed() -> None:
    listed = re.findall(
        r"^- \[.+?\]\((.+?)\): .+\.$", SITE["readmes"](ROOT / "docs" / "plugins"), re.MULTILINE
    )
    assert [*READMES, *CONTRIB] == [(ROOT / "docs" / "plugins" / path).resolve() for path in listed]


def test_sections_of_a_docstring_become_fields() -> None:
    docstring = [
        "Do it.",
        "",
        "Args:",
        "    x: how",
        "        often.",
        "",
        "Raises:",
        "    E: if not.",
    ]
    expected = ["Do it.", "", "", ":param x: how", "        often.", "", "", ":raises E: if not."]
    assert expected == SITE["with_fields"](docstring)


def test_every_fragment_says_its_kind() -> None:
    fragments = {page.name for page in DOCS if page.parent.name == "changelog"} - {"index.md"}
    assert [] == [name for name in fragments if name.split(".")[1] not in SITE["_KINDS"]]


def test_every_decision_is_listed() -> None:
    listed = re.findall(r"^- \[(\d+): .+\]\(0*(\d+)-.+\.md\)$", text_of(DECISIONS), re.MULTILINE)
    assert [
        (str(n), str(n)) for n in range(1, len(list(DECISIONS.parent.glob("0*"))) + 1)
    ] == listed


def test_the_reference_has_every_public_name_once() -> None:
    documented = re.findall(
        r"^\.\. (?:auto|py:)\w+:: neaptide\.(\w+)(?:\(.*\))?$", text_of(API), re.MULTILINE
    )
    modules = {module.__name__.rpartition(".")[2] for module in (hookspecs, testing)}
    assert sorted(neaptide.__all__) == sorted(set(documented) - modules)
    assert len(set(documented)) == len(documented)


@pytest.mark.parametrize(
    "module",
    [neaptide_kernels.registry, low_precision, offload, recompute],
    ids=lambda m: m.__name__,
)
def test_the_reference_has_every_name_that_a_public_module_exports(module: ModuleType) -> None:
    name = re.escape(module.__name__)
    documented = re.findall(rf"^\.\. (?:auto|py:)\w+:: {name}\.(\w+)", text_of(API), re.MULTILINE)
    elsewhere = {"KernelScope"}  # as the core's Protocol
    assert sorted(module.__all__) == sorted({*documented, *elsewhere} & {*module.__all__})
    assert set(documented) <= set(module.__all__)


def taught() -> Iterator[tuple[str, str]]:
    """Yield page and dotted name of each import of ours in the docs' Python blocks."""
    for page in (*DOCS, *READMES, *CONTRIB, ROOT / "README.md"):
        for block in blocks(page):
            if block.language == "python":
                for node in ast.walk(ast.parse(block.text)):
                    if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
                        yield from ((page.name, f"{node.module}.{one.name}") for one in node.names)


def _is_ours(module: str) -> bool:
    first = module.partition(".")[0]
    return first in {"neaptide", "neaptide_kernels", "neaptide_toolkit", "neaptide_verbs"}


def test_everything_the_docs_teach_to_import_is_in_the_reference() -> None:
    text = text_of(API)
    documented = set(re.findall(r"^\.\. (?:auto\w+|py:\w+):: ([\w.]+)", text, re.MULTILINE))
    whole = set(re.findall(r"^\.\. automodule:: ([\w.]+)", text, re.MULTILINE))
    listed = {
        (page, name)
        for page, name in taught()
        if name not in documented and name.rpartition(".")[0] not in whole
    }
    assert set() == listed
    assert len(set(taught())) > 30


ALIASES = re.findall(r"^\.\. py:type:: (?:\w+\.)*(\w+)$", text_of(API), re.MULTILINE)


@pytest.mark.parametrize("alias", ALIASES)
def test_every_type_described_by_hand_is_one_that_a_public_package_has(alias: str) -> None:
    pattern = re.compile(rf"^ *{alias} = ", re.MULTILINE)
    files = (path for folder in PUBLIC for path in (ROOT / folder).rglob("*.py"))
    assert any(pattern.search(text_of(path)) for path in files)


def test_the_picture_of_a_step_names_hooks_only() -> None:
    picture = text_of(ROOT / "docs" / "images" / "step.svg")
    named = set(
        re.findall(r"\b(?:around|before|after|on|select|plan|propose|collect)_\w+", picture)
    )
    outside = {"around_evaluate", "around_save", "on_run_start", "on_run_end"}
    expected = {name for name in _SPECS if name.startswith(("around_", "before_", "after_", "on_"))}
    assert set() == named - set(_SPECS)
    assert expected - outside == {name for name in named if name in expected}
