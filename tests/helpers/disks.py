"""A directory on a disk, also where the directory for temporary files is in RAM."""

from __future__ import annotations

from pathlib import Path
from tempfile import gettempdir

from neaptide_toolkit.machine.file_systems import IN_MEMORY, kind_of

ROOT = Path(__file__).parents[2]


def folder() -> str:
    """Return the directory for temporary files, or this repository if the former is in RAM."""
    usual = gettempdir()
    return str(ROOT) if kind_of(Path(usual)) in IN_MEMORY else usual
