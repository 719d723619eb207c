"""Files that grow by lines, on disks that are full and in directories that come and go."""

from __future__ import annotations

import resource
import shutil
import signal
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from neaptide.io.appending import AppendedFile

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)


def test_each_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    with closing(AppendedFile(tmp_path / "file", header="a,b")) as file:
        expected = "a,b\n"
        for number in range(3):
            file.append(f"{number},x")
            expected += f"{number},x\n"
            assert expected == file.path.read_text(encoding="utf-8")
    with closing(AppendedFile(tmp_path / "file", header="a,b")) as file:
        file.append("9,y")  # goes on, without a header
        assert f"{expected}9,y\n" == file.path.read_text(encoding="utf-8")


def test_half_a_line_is_taken_back(tmp_path: Path) -> None:
    with closing(AppendedFile(tmp_path / "file")) as file:
        file.append("first")
        with no_file_beyond(10):
            for _ in range(2):
                with pytest.raises(OSError, match=r"No space left|File too large"):
                    file.append("a line too long")
            assert "first\n" == file.path.read_text(encoding="utf-8")
        file.append("second")
        assert "first\nsecond\n" == file.path.read_text(encoding="utf-8")


def test_a_header_that_does_not_fit_is_written_later(tmp_path: Path) -> None:
    with closing(AppendedFile(tmp_path / "file", header="a,b,c")) as file:
        with no_file_beyond(3), pytest.raises(OSError, match="No space left"):
            file.append("1,2,3")
        file.append("4,5,6")
        assert "a,b,c\n4,5,6\n" == file.path.read_text(encoding="utf-8")


def test_a_full_device_is_an_error_each_time() -> None:
    with closing(AppendedFile(Path("/dev/full"))) as file:
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                file.append("lost")


def test_a_directory_that_was_removed_and_made_anew_has_the_lines_since(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    directory.mkdir()
    with closing(AppendedFile(directory / "file", header="head")) as file:
        file.append("one")
        shutil.rmtree(directory)
        with pytest.raises(FileNotFoundError):
            file.append("two")
        directory.mkdir()
        file.append("three")
        assert "head\nthree\n" == file.path.read_text(encoding="utf-8")


def test_a_file_that_was_replaced_is_gone_on_with(tmp_path: Path) -> None:
    with closing(AppendedFile(tmp_path / "file")) as file:
        file.append("one")
        (tmp_path / "other").write_text("other\n", encoding="utf-8")
        (tmp_path / "other").replace(file.path)
        file.append("two")
        assert "other\ntwo\n" == file.path.read_text(encoding="utf-8")
