"""The Markdown pages of the repository, and what is in them: blocks, tables, links, headings."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import attrs

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = ROOT / "plugins" / "neaptide_plugins"
DOCS = sorted((ROOT / "docs").rglob("*.md"))
READMES = sorted(PLUGINS.glob("*/README.md"))
CONTRIB = sorted((ROOT / "contrib").glob("*/README.md"))
ROOMS = [
    ROOT / folder / "README.md"
    for folder in (
        "core/neaptide",
        "plugins",
        "kernels/neaptide_kernels",
        "contrib",
        "bench",
        "tests",
    )
]
"""What each big folder holds; they are read in the repository, and are not on the site."""
PAGES = [
    *(ROOT / page for page in ("README.md", ".github/CONTRIBUTING.md")),
    *(*DOCS, *READMES, *CONTRIB, *ROOMS),
]

_FENCE = re.compile(
    r"^(?P<indent> *)(?:<!-- file: (?P<file>\S+) -->\n *)?```(?P<language>[^`\n]*)\n"
    r"(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
_INDENTED = re.compile(r"(?<=\n\n)(?:(?: {4}.*)?\n)+")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@attrs.frozen
class Block:
    """A fenced block, and the file it is where a comment before it names one."""

    page: Path
    line: int
    language: str
    text: str
    file: str | None

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"


def text_of(page: Path) -> str:
    """Return a page's text."""
    return page.read_text(encoding="utf-8")


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page."""
    text = text_of(page)
    return [
        Block(
            page,
            text.count("\n", 0, match.start("text")) + 1,
            match["language"],
            dedent(match["text"]),
            match["file"],
        )
        for match in _FENCE.finditer(text)
    ]


def indented(page: Path) -> list[str]:
    """Return the blocks of a page that are indented by four spaces, without the indent."""
    found = _INDENTED.findall(without_fences(page))
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip("\n") for block in found]


def without_fences(page: Path) -> str:
    """Return a page's text with its fenced blocks cut out."""
    return _FENCE.sub("", text_of(page))


def links(page: Path) -> list[str]:
    """Return the targets of a page's links that are no URLs."""
    return [target for target in _LINK.findall(without_fences(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and MyST make them."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings(page))
    return {heading.replace(" ", "-") for heading in plain}


def headings(page: Path) -> list[str]:
    """Return a page's headings without their marks."""
    return _HEADING.findall(without_fences(page))


def section(page: Path, heading: str) -> str:
    """Return the text below `heading`, up to the next heading of any level."""
    for part in re.split(r"^#+ ", text_of(page), flags=re.MULTILINE):
        name, _, body = part.partition("\n")
        if name == heading:
            return body
    msg = f"{page.name} has no heading {heading!r}"
    raise LookupError(msg)


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables in `text`, each row by its column's name; `\\|` is a bar in a cell."""
    found: list[list[dict[str, str]]] = []
    for lines in re.findall(r"^(?:\|.*\|\n)+", f"{text}\n", re.MULTILINE):
        header, _, *body = [_cells(line) for line in lines.splitlines()]
        found.append([dict(zip(header, row, strict=True)) for row in body])
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
