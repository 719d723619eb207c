"""Links, hard links, pipes and folders that stand in a file's place and lead to a reader's."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def symbolic(place: Path, mine: Path) -> None:
    place.symlink_to(mine / "file")


def symbolic_to_a_folder(place: Path, mine: Path) -> None:
    place.symlink_to(mine / "folder")


def dangling(place: Path, mine: Path) -> None:
    place.symlink_to(mine / "nothing")


def hard(place: Path, mine: Path) -> None:
    place.hardlink_to(mine / "file")


def pipe(place: Path, _: Path) -> None:
    os.mkfifo(place)


def folder(place: Path, _: Path) -> None:
    place.mkdir()


KINDS = (symbolic, symbolic_to_a_folder, dangling, hard, pipe)
