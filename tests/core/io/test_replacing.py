"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

import pytest

from neaptide.io.replacing import replace_file

if TYPE_CHECKING:
    from pathlib import Path


def test_a_file_is_made_and_replaced_with_nothing_beside_it(tmp_path: Path) -> None:
    for content in (b"old", b"\xff new"):
        replace_file(tmp_path / "a.txt", content)
        assert [(tmp_path / "a.txt", content)] == [(p, p.read_bytes()) for p in tmp_path.iterdir()]


def test_where_it_cannot_be_put_in_place_nothing_is_left_beside(tmp_path: Path) -> None:
    (tmp_path / "a.txt").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "a.txt", b"new")
    assert ["a.txt"] == [path.name for path in tmp_path.iterdir()]


def test_a_disk_that_takes_a_part_leaves_the_old_file_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "a.txt", b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            replace_file(tmp_path / "a.txt", bytes(5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [b"old"] == [path.read_bytes() for path in tmp_path.iterdir()]
