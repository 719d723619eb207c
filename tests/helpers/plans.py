"""Runs `neaptide plan` in a process of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import warm

if TYPE_CHECKING:
    from pathlib import Path

KINDS = "neaptide_toolkit.testing.kinds"
CONFIG = """
version = 1
[model]
name = "neaptide_toolkit.testing.kinds:deep"
options = {{layers = {layers}, width = {width}}}
[data]
name = "neaptide_toolkit.testing.kinds:sequences"
options = {{width = {width}}}
[train]
batch_size = 8
device = "cpu"
"""


def neaptide(folder: Path, *words: str) -> Any:
    """Run a command in a folder."""
    return warm.run(["-m", "neaptide", *words], cwd=folder)


def planned(folder: Path, *arguments: str, layers: int = 2, width: int = 64) -> Any:
    """Plan a small configuration, which is written to `mine.toml`."""
    (folder / "mine.toml").write_text(CONFIG.format(layers=layers, width=width))
    return neaptide(folder, "plan", "mine.toml", *arguments)
