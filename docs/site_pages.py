"""What the site makes of the pages and docstrings: navigation, the changelog, lists of fields."""

# ruff: noqa: INP001 - a module beside the pages, not a package

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_ITEM = re.compile(r"^- \[(?P<title>[^]]+)\]\((?P<path>[^)#]+)\.(?:md|rst)\)", re.MULTILINE)
_FIELDS = {"Args:": "param", "Raises:": "raises"}
_INDENT = 4
_KINDS = ("added", "changed", "fixed", "removed")


def navigation(text: str) -> str:
    """Return a hidden table of contents for each section: the items that begin with a page."""
    tables = ""
    for part in re.split(r"^## ", text, flags=re.MULTILINE):
        caption, _, body = part.partition("\n")
        pages = [f"{title} <{path}>\n" for title, path in _ITEM.findall(body)]
        if pages:
            caption = "" if caption.startswith("# ") else f":caption: {caption}\n"
            tables += f"\n```{{toctree}}\n:hidden:\n{caption}\n{''.join(pages)}```\n"
    return tables


def changelog(folder: Path) -> str:
    """Return the fragments `<name>.<kind>.md` of a folder as a list for each kind."""
    text = ""
    for kind in _KINDS:
        fragments = sorted(folder.glob(f"*.{kind}.md"))
        if fragments:
            text += f"\n## {kind.capitalize()}\n\n"
        for fragment in fragments:
            body = fragment.read_text(encoding="utf-8").strip().replace("\n", "\n  ")
            text += f"- {body}\n"
    return text


def readmes(folder: Path) -> str:
    """Return a list of the READMEs below the two folders of plugins, with what each says first."""
    root = folder.parents[1]
    shipped = sorted((root / "plugins" / "neaptide_plugins").glob("*/README.md"))
    others = sorted((root / "contrib").glob("*/README.md"))
    return _listed("Plugins that ship", shipped) + _listed("Distributions of their own", others)


def _listed(heading: str, pages: list[Path]) -> str:
    text = f"\n## {heading}\n\n"
    for page in pages:
        title, _, body = page.read_text(encoding="utf-8").partition("\n")
        first = body.strip().partition("\n\n")[0].replace("\n", " ").partition(". ")[0].rstrip(".")
        path = "/".join(page.parts[-4:] if "neaptide_plugins" in page.parts else page.parts[-3:])
        text += f"- [{title.removeprefix('# ')}](../../{path}): {first}.\n"
    return text


def with_fields(docstring: list[str]) -> list[str]:
    """Return a docstring's lines with the sections `Args:` and `Raises:` as field lists.

    Napoleon would do it too, but takes whatever is before a colon in an attribute's docstring for
    its type.
    """
    lines, role = [], ""
    for line in docstring:
        indent = len(line) - len(line.lstrip())
        if line.strip() and not indent:
            role = _FIELDS.get(line, "")
        if line in _FIELDS:
            lines.append("")
        elif role and indent == _INDENT:
            name, _, text = line.strip().partition(": ")
            lines.append(f":{role} {name}: {text}")
        else:
            lines.append(line)
    return lines
