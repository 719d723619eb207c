"""What the system says of mapped files."""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING

import pytest
import torch

from neaptide_toolkit.machine import mappings

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not mappings.mapped_files(), reason="this system does not say it")
PAGE = mmap.PAGESIZE


def address(pages: mmap.mmap) -> int:
    return torch.frombuffer(pages, dtype=torch.uint8).data_ptr()


@pytest.mark.parametrize(
    "name", ["plain", "two words", "tür\tzu", "line\u2028end", "next\x85line", "\udcff"]
)
def test_a_mapping_is_found_by_its_file_and_offset(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"x" * 5 * PAGE)
    with path.open("rb") as file:
        pages = mmap.mmap(
            file.fileno(), 3 * PAGE, flags=mmap.MAP_PRIVATE, offset=mmap.ALLOCATIONGRANULARITY
        )
    begin = address(pages)
    (found,) = [one for one in mappings.mapped_files() if one.start <= begin < one.stop]
    assert (found.path, found.inode) == (str(path.resolve()), path.stat().st_ino)
    assert begin - found.start + found.offset == mmap.ALLOCATIONGRANULARITY
    assert found.stop >= begin + 3 * PAGE


def test_a_page_that_was_written_is_told(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 9 * PAGE)
    with path.open("rb") as file:
        pages = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
    begin, end = address(pages), address(pages) + 9 * PAGE
    assert not mappings.is_as_in_file(begin, end)  # its ends are not in memory yet
    assert [b"x", b"x"] == [pages[:1], pages[-1:]]
    assert mappings.is_as_in_file(begin, end)
    pages[4 * PAGE : 4 * PAGE + 1] = b"x"  # the same value is a write, too
    assert not mappings.is_as_in_file(begin, end)
    assert mappings.is_as_in_file(begin, begin + 2 * PAGE) is bool(pages[PAGE : PAGE + 1])


def test_anonymous_memory_is_of_no_file() -> None:
    pages = mmap.mmap(-1, 4 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    assert not mappings.is_as_in_file(address(pages), address(pages) + 4 * PAGE)
    assert pages[:1] == pages[-1:] == b"\0"
    assert not mappings.is_as_in_file(address(pages), address(pages) + 4 * PAGE)


def test_a_file_that_was_just_written_is_in_ram_and_no_other_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 300 * PAGE)
    assert mappings.cached_part(path) == 1
    path.write_bytes(b"")
    assert mappings.cached_part(path) is None
    assert mappings.cached_part(tmp_path / "none") is None


def test_what_pages_hold_stays_when_all_are_allocated() -> None:
    pages = mmap.mmap(-1, 64 * PAGE)
    pages[7 * PAGE : 7 * PAGE + 3] = b"abc"
    mappings.populate(address(pages) + 5, 60 * PAGE)
    assert pages[7 * PAGE : 7 * PAGE + 3] == b"abc"
    if os.uname().release.split(".") >= ["5", "14"]:
        assert mappings.part_in_ram(address(pages), 60 * PAGE, tried=60) == 1


def test_a_system_that_says_nothing_has_no_mappings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mappings, "_MAPS", tmp_path / "maps")
    monkeypatch.setattr(mappings, "_PAGEMAP", tmp_path / "pagemap")
    assert mappings.mapped_files() == []
    assert not mappings.is_as_in_file(0, PAGE)
