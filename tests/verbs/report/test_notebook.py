"""The report as a notebook shows it: the page in a frame, one run or several."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from neaptide import RunDirectoryError
from neaptide_verbs.report.notebook import inline

FRAME = re.compile(r'<iframe srcdoc="([^"]*)" sandbox title="([^"]*)" style="([^"]*)"></iframe>')


@pytest.fixture
def trained(neaptide: Any) -> Path:
    """Leave a finished run in `run`."""
    assert 0 == neaptide("run", "tiny.toml", "--set", "run.dir=run", "--quiet").code
    return Path("run")


def test_the_frame_holds_the_page_that_the_verb_writes(neaptide: Any, trained: Path) -> None:
    shown = inline(trained, height=900)
    assert not (trained / "report.html").exists()
    assert 0 == neaptide("report", trained).code
    frame = FRAME.fullmatch(shown._repr_html_())
    assert frame is not None
    page, title, style = map(unescape, frame.groups())
    written = (trained / "report.html").read_text(encoding="utf-8")
    assert written.partition("<footer>")[0] == page.partition("<footer>")[0]
    assert "<script" not in page
    assert repr(shown) == title
    assert "height: 900px" in style


def test_printed_it_is_the_summary(trained: Path) -> None:
    assert str(inline(trained)).startswith("run  finished\n")


def test_several_runs_are_compared(trained: Path) -> None:
    shown = inline(str(trained), trained)
    assert "<title>2 runs - Neaptide</title>" in shown.page
    assert 2 == len(shown.runs)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError):
        inline(tmp_path / "nowhere")
