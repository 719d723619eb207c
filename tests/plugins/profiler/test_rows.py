"""The CSV file: what is on disk when, and what stays of an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from limits import no_file_beyond

from neaptide.io.folder import Folder
from neaptide_plugins.profiler.rows import Rows

if TYPE_CHECKING:
    from pathlib import Path

OLD = "step,bytes\n1,10\n2,20\n3,30\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def appended(path: Path, step: int) -> str:
    rows = Rows(Folder(path.parent), path.name, ("step", "bytes"))
    rows.append(step, None)
    rows.close()
    return path.read_text(encoding="utf-8")


def test_without_a_delay_a_row_is_there_at_once(path: Path) -> None:
    rows = Rows(Folder(path.parent), path.name, ("step", "bytes"), delay=0.0)
    for step in (1, 2):
        rows.append(step, 10 * step)
        assert f"{step},{10 * step}\n" == path.read_text(encoding="utf-8").splitlines(True)[-1]
    rows.close()


def test_rows_held_back_are_there_after_a_flush(path: Path) -> None:
    rows = Rows(Folder(path.parent), path.name, ("step", "bytes"), delay=1e9)
    rows.append(1, 10)
    rows.append(2, 20)
    assert "2,20" not in path.read_text(encoding="utf-8")
    rows.flush()
    assert "step,bytes\n1,10\n2,20\n" == path.read_text(encoding="utf-8")
    rows.close()


def test_a_cell_that_is_none_is_empty(path: Path) -> None:
    assert "step,bytes\n1,\n" == appended(path, 1)


def test_a_new_run_begins_anew(path: Path) -> None:
    path.write_text(OLD, encoding="utf-8")
    assert "step,bytes\n1,\n" == appended(path, 1)


def test_a_resumed_run_drops_what_it_does_again(path: Path) -> None:
    path.write_text(OLD, encoding="utf-8")
    assert "step,bytes\n1,10\n2,20\n3,\n" == appended(path, 3)


@pytest.mark.parametrize("cut", range(1, len("3,30\n")))
def test_a_row_cut_short_goes(path: Path, cut: int) -> None:
    path.write_text(OLD[:-cut], encoding="utf-8")
    assert "step,bytes\n1,10\n2,20\n9,\n" == appended(path, 9)


def test_an_older_file_is_continued_whole_or_left_alone(path: Path) -> None:
    path.write_text(OLD, encoding="utf-8")
    with no_file_beyond(10), pytest.raises(OSError, match="File too large"):
        Rows(Folder(path.parent), path.name, ("step", "bytes")).append(4, 40)
    assert OLD == path.read_text(encoding="utf-8")
    assert [path] == list(path.parent.iterdir())


def test_without_rows_there_is_no_file(path: Path) -> None:
    Rows(Folder(path.parent), path.name, ("step",)).close()
    assert not path.exists()


@pytest.mark.parametrize("damage", [b"\xff\xfe,5\n", b"9" * 5000 + b",5\n", b"\0\0\0\n"])
def test_a_damaged_row_goes_alone(path: Path, damage: bytes) -> None:
    path.write_bytes(b"step,bytes\n1,10\n" + damage + b"2,20\n")
    assert "step,bytes\n1,10\n2,20\n3,\n" == appended(path, 3)
