"""The CSV file: rows at once, and what stays of an older one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from neaptide_plugins.profiler.rows import Rows

if TYPE_CHECKING:
    from pathlib import Path

OLD = "step,bytes\n1,10\n2,20\n3,30\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.csv"


def appended(path: Path, step: int) -> str:
    rows = Rows(path, ("step", "bytes"))
    rows.append(step, None)
    text = path.read_text(encoding="utf-8")  # before it is closed
    rows.close()
    return text


def test_a_row_is_there_at_once_and_none_is_empty(path: Path) -> None:
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


def test_without_rows_there_is_no_file(path: Path) -> None:
    Rows(path, ("step",)).close()
    assert not path.exists()
