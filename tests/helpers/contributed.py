"""The distributions under contrib/, found as if installed, without installing them."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

from distributions import install
from pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = sorted(
    path.parent
    for path in (ROOT / "contrib").glob("neaptide-*/pyproject.toml")
    if path.parent.name != "neaptide-simulated-gpu"  # a tool: it needs no Neaptide
)


def entry_points_of(folder: Path) -> dict[str, dict[str, str]]:
    """Return the entry points of a distribution by group."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, dict[str, str]] = tomllib.loads(text)["project"]["entry-points"]
    return found


def found_from(site: Path) -> list[Path]:
    """Return the folders to import from; plugins stay out, which other tests list."""
    for folder in FOLDERS:
        groups = entry_points_of(folder)
        groups.pop("neaptide.plugins", None)
        install(site, folder.name, groups)
    return [site, *(folder / "src" for folder in FOLDERS)]
