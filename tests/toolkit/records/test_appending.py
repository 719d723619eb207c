"""Files that grow by lines, on disks that are full and in directories that come and go."""

from __future__ import annotations

import shutil
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from limits import no_file_beyond

from neaptide.io.folder import Folder
from neaptide_toolkit.records.appending import AppendedFile

if TYPE_CHECKING:
    from pathlib import Path


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    with closing(AppendedFile(Folder(tmp_path), "file", header="a,b")) as file:
        expected = "a,b\n"
        for number in range(3):
            file.append(f"{number},x")
            expected += f"{number},x\n"
            assert expected == (tmp_path / "file").read_text(encoding="utf-8")
    with closing(AppendedFile(Folder(tmp_path), "file", header="a,b")) as file:
        file.append("9,y")  # goes on, without a header
        assert f"{expected}9,y\n" == (tmp_path / "file").read_text(encoding="utf-8")


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    with closing(AppendedFile(Folder(tmp_path), "file")) as file:
        file.append("first")
        with no_file_beyond(10):
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space left|File too large"):
                    file.append("a line too long")
            assert "first\n" == (tmp_path / "file").read_text(encoding="utf-8")
        file.append("second")
        assert "first\nsecond\n" == (tmp_path / "file").read_text(encoding="utf-8")


def test_a_header_that_does_not_fit_is_written_later(tmp_path: Path) -> None:
    with closing(AppendedFile(Folder(tmp_path), "file", header="a,b,c")) as file:
        with no_file_beyond(3), pytest.raises(OSError, match="No space left"):
            file.append("1,2,3")
        file.append("4,5,6")
        assert "a,b,c\n4,5,6\n" == (tmp_path / "file").read_text(encoding="utf-8")


def test_a_directory_that_was_removed_and_made_anew_has_the_lines_since(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with closing(AppendedFile(Folder(directory), "file", header="head")) as file:
        file.append("one")
        shutil.rmtree(directory)
        with pytest.raises(FileNotFoundError):
            file.append("two")
        directory.mkdir()
        file.append("three")
        assert "head\nthree\n" == (directory / "file").read_text(encoding="utf-8")


def test_a_file_that_was_replaced_is_gone_on_with(tmp_path: Path) -> None:
    with closing(AppendedFile(Folder(tmp_path), "file")) as file:
        file.append("one")
        (tmp_path / "other").write_text("other\n", encoding="utf-8")
        (tmp_path / "other").replace(tmp_path / "file")
        file.append("two")
        assert "other\ntwo\n" == (tmp_path / "file").read_text(encoding="utf-8")
