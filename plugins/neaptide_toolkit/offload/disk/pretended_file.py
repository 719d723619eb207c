"""Stands for a file of the disk tier in a dry run, in which nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from neaptide.text import called
from neaptide_toolkit.offload.pages import Pages, mapped

if TYPE_CHECKING:
    from pathlib import Path

    import torch


class FilePages(Pages):
    """Pages that stand for room in a file."""


class PretendedFile:
    """Has the tensors of a `TierFile` and no file; its directory need not exist."""

    direct = True
    written_bytes = 0

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.size = 0
        self.moved_to_ram: list[str] = []

    def __repr__(self) -> str:
        return called(self, str(self.folder))

    def allocate(self, size: int) -> torch.Tensor:
        """Return a tensor, uint8 `[size]`, that nobody writes."""
        self.size += size
        return mapped(size, FilePages)[1]

    def close(self) -> None:
        """Do nothing."""
