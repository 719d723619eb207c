"""`neaptide report`: of a real run, of several, of what is no run; its files and exit codes."""

from __future__ import annotations

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

MEMORY = "plugins/profiler/memory.csv"


class Page(HTMLParser):
    """Collects what a page says and what it refers to; unbalanced tags are an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.references: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert [] == self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.references += [v or "" for k, v in attrs if k in {"src", "href", "xlink:href"}]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text.append(data)


@pytest.fixture
def trained(neaptide: Any) -> Path:
    """Leave a finished run in `run`."""
    assert 0 == neaptide("run", "tiny.toml", "--set", "run.dir=run", "--quiet").code
    return Path("run")


def test_a_run_is_summed_up(neaptide: Any, trained: Path) -> None:
    done = neaptide("report", trained)
    assert (0, "") == (done.code, done.err)
    assert "\x1b" not in done.out
    assert done.out.startswith("run  finished\n")
    for word in ("speedup           not measured", "plugins/profiler/memory.csv", "jumps"):
        assert word in done.out
    assert done.out.endswith(f"page: {trained / 'report.html'}\n")


def test_a_run_in_the_place_of_another_has_its_own_report(
    neaptide: Any, trained: Path, caplog: pytest.LogCaptureFixture
) -> None:
    neaptide("report", trained)
    old = {name: (trained / name).read_bytes() for name in (MEMORY, "report.html")}
    shutil.rmtree(trained / "checkpoints")
    without = ("--set", "plugins.profiler.enabled=false", "--set", "run.dir=run", "--quiet")
    assert 0 == neaptide("run", "tiny.toml", *without).code
    assert [
        f"report and plugins' files of an earlier run are now in {Path.cwd()}/run/earlier-1"
    ] == [record.getMessage() for record in caplog.records]
    assert old == {name: (trained / "earlier-1" / name).read_bytes() for name in old}
    found = json.loads(neaptide("report", trained, "--json").out)
    assert {"steps.csv"} == {row["source"] for row in found["memory"]}


def test_several_runs_are_compared(neaptide: Any, trained: Path) -> None:
    neaptide("run", "tiny.toml", "--set", "run.dir=other", "--set", "optimizer.lr=0.01", "--quiet")
    done = neaptide("report", trained, "other")
    assert (0, "") == (done.code, done.err)
    assert "optimizer.lr" in done.out
    assert "train.steps" not in done.out
    page = Path("report.html").read_text(encoding="utf-8")
    assert "Settings that differ" in page
    found = json.loads(neaptide("report", trained, "other", "--json", "--no-html").out)
    assert ["run", "other"] == [run["run"] for run in found["runs"]]
    assert {"run": "0.001", "other": "0.01"} == found["settings_that_differ"]["optimizer.lr"]


def test_json_holds_what_the_run_wrote(neaptide: Any, trained: Path) -> None:
    found = json.loads(neaptide("report", trained, "--json", "--output", "page.html").out)
    summary = json.loads((trained / "summary.json").read_text(encoding="utf-8"))
    assert summary == found["summary"]
    assert ("finished", 24, None) == (found["status"], found["steps"], found["speedup"])
    assert summary["val_loss"] == found["last_validation"]
    assert "page.html" == found["page"]
    assert Path("page.html").exists()
    assert not (trained / "report.html").exists()


def test_no_page_where_none_is_wanted(neaptide: Any, trained: Path) -> None:
    assert "page:" not in neaptide("report", trained, "--no-html").out
    assert not (trained / "report.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "nowhere is no directory; give the directory of a run"),
        (("tiny.toml",), "tiny.toml is a file; give the directory of a run"),
        (("empty",), "empty is not a run directory; a run has steps.csv or config.toml in it"),
        (("long" * 99,), "File name too long; give the directory of a run"),
        (("folder",), "folder is not a run directory; it holds runs: folder/run"),
        (("folder/run", "--output", "a", "--no-html"), "give one of them"),
        (("folder/run", "--output", "no/such/page.html"), "cannot write no/such/page.html"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    neaptide: Any, arguments: tuple[str, ...], said: str
) -> None:
    Path("empty").mkdir()
    Path("folder/run").mkdir(parents=True)
    Path("folder/run/steps.csv").touch()
    done = neaptide("report", *arguments)
    assert (2, "") == (done.code, done.out)
    (line,) = done.err.splitlines()
    assert said in line


def test_the_page_needs_nothing_but_itself(neaptide: Any, trained: Path) -> None:
    neaptide("report", trained)
    text = (trained / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert [] == page.references
    assert not page.tags & {"script", "link", "img", "iframe", "object"}
    assert not [word for word in ("http:", "https:", "url(", "@import") if word in text]
    assert {"svg", "table", "caption", "title"} <= page.tags


def test_every_figure_of_the_summary_is_on_the_page(neaptide: Any, trained: Path) -> None:
    neaptide("report", trained)
    said = " ".join(Page((trained / "report.html").read_text(encoding="utf-8")).text)
    for line in neaptide("report", trained, "--no-html").out.splitlines():
        for word in line.split():
            assert not word[0].isdigit() or word in said, line
