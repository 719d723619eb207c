"""The run directory: one process at a time, and files that survive a crash and a full disk."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from support import tiny_trainer

from neaptide import RunDirectoryError, StepRecord
from neaptide.rundir import COLUMNS, RunDirectory, jsonable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOLD = """
import sys
from pathlib import Path
from neaptide import StepRecord
from neaptide.rundir import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[RunDirectory]:
    """Return a run directory of this process."""
    held = RunDirectory(tmp_path / "run")
    yield held
    held.close()


def row(step: int, **values: Any) -> StepRecord:
    """Return a row of steps.csv."""
    facts = {"phase": "full", "loss": 0.5, "was_predicted": False, "seconds": 0.1, "host_bytes": 7}
    return StepRecord(step=step, **{**facts, **values})


def test_a_second_process_is_told_who_trains_there(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert "held\n" == holder.stdout.readline()
        with pytest.raises(RunDirectoryError) as caught:
            RunDirectory(path)
        assert (
            f"another process (pid {holder.pid}) trains in {path}; wait for it or set run.dir"
        ) == str(caught.value)
        holder.kill()
        holder.wait()
        RunDirectory(path).close()  # a killed process holds nothing
    finally:
        holder.kill()
        holder.communicate()


def test_a_closed_directory_can_be_opened_again(tmp_path: Path) -> None:
    for _ in range(2):
        RunDirectory(tmp_path / "run").close()


def test_a_trainer_that_failed_gives_the_directory_back(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}}
    trainer, _ = tiny_trainer(config)
    with trainer, pytest.raises(RunDirectoryError):
        tiny_trainer(config)
    with pytest.raises(ZeroDivisionError), tiny_trainer(config)[0]:
        raise ZeroDivisionError
    tiny_trainer(config)[0].close()


@pytest.mark.parametrize("place", ["file/run", "/proc/neaptide-run"])
def test_a_place_nobody_can_write_to_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    path = tmp_path / place  # an absolute one replaces the folder
    with pytest.raises(RunDirectoryError) as caught:
        RunDirectory(path)
    assert str(caught.value).startswith(f"cannot write in the run directory {path}: ")
    assert str(caught.value).endswith("; set run.dir elsewhere")


def test_rows_have_every_column_and_keep_every_bit(directory: RunDirectory) -> None:
    directory.row(row(1, loss=0.1 + 0.2))
    directory.row(row(2, loss=math.nan, was_predicted=True, grad_norm=1e-300))
    assert (
        ",".join(COLUMNS),
        "1,full,0.30000000000000004,false,,,0.1,,7",
        "2,full,nan,true,1e-300,,0.1,,7",
    ) == tuple((directory.path / "steps.csv").read_text(encoding="utf-8").splitlines())


def test_a_row_cut_short_by_a_kill_is_dropped(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.row(row(step))
    path = directory.path / "steps.csv"
    whole = path.read_text(encoding="utf-8")
    for cut in ("3,fu", "3", "2,full,0.5,false,,,0.1", "2"):
        path.write_text(whole + cut, encoding="utf-8")
        directory.rewind(3)
        assert whole == path.read_text(encoding="utf-8")


def test_a_line_of_json_cut_short_is_dropped(directory: RunDirectory) -> None:
    directory.line("events.jsonl", {"event": "one", "step": 1})
    path = directory.path / "events.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole[:9], encoding="utf-8")
    directory.rewind(5)
    assert whole == path.read_text(encoding="utf-8")


def test_rewinding_drops_what_came_later_and_keeps_what_has_no_step(
    directory: RunDirectory,
) -> None:
    for step in (1, 2, 3):
        directory.row(row(step))
        directory.line("metrics.jsonl", {"step": step, "loss": 1.0})
        directory.line("events.jsonl", {"event": "e", "step": step})
    directory.line("events.jsonl", {"event": "no step"})
    assert 2 == directory.rewind(2)
    assert ["step", "1", "2"] == [
        line.partition(",")[0]
        for line in (directory.path / "steps.csv").read_text(encoding="utf-8").splitlines()
    ]
    for name, steps in (("metrics.jsonl", [1, 2]), ("events.jsonl", [1, 2, None])):
        lines = (directory.path / name).read_text(encoding="utf-8").splitlines()
        assert steps == [json.loads(line).get("step") for line in lines]


@pytest.mark.parametrize(
    "damage",
    [b"[1]", b'"step"', b'{"step": null}', b'{"step": {}}', b"\xff\xfe", b"\0" * 9, b"[" * 100_000],
)
@pytest.mark.parametrize("name", ["steps.csv", "metrics.jsonl", "events.jsonl"])
def test_damaged_lines_are_dropped(directory: RunDirectory, name: str, damage: bytes) -> None:
    directory.row(row(1))
    for other in ("metrics.jsonl", "events.jsonl"):
        directory.line(other, {"step": 1})
    path = directory.path / name
    whole = path.read_bytes()
    path.write_bytes(whole + damage + b"\n")
    assert 1 == directory.rewind(5)
    assert whole == path.read_bytes()


@pytest.mark.parametrize("step", ["9" * 15, "9" * 5000])
def test_a_row_of_an_impossible_step_is_dropped(directory: RunDirectory, step: str) -> None:
    directory.row(row(1))
    path = directory.path / "steps.csv"
    whole = path.read_text(encoding="utf-8")
    path.write_text(f"{whole}{step}{',' * (len(COLUMNS) - 1)}\n", encoding="utf-8")
    assert 1 == directory.rewind(5)
    assert whole == path.read_text(encoding="utf-8")


def test_without_rows_no_update_has_one(directory: RunDirectory) -> None:
    (directory.path / "steps.csv").write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    assert 0 == directory.rewind(5)


def test_starting_afresh_removes_the_records(directory: RunDirectory) -> None:
    directory.row(row(1))
    directory.whole("summary.json", "{}")
    directory.start_afresh()
    assert [".lock"] == [path.name for path in directory.path.iterdir()]


def test_a_disk_that_takes_nothing_costs_rows_and_one_warning(
    directory: RunDirectory, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.rmtree(directory.path)
    for step in (1, 2, 3):
        directory.row(row(step))
        directory.line("events.jsonl", {"step": step})
    assert 1 == caplog.text.count("training goes on without it")
    directory.path.mkdir()
    directory.row(row(4))
    assert 2 == len((directory.path / "steps.csv").read_text(encoding="utf-8").splitlines())


def test_a_whole_file_is_replaced_at_once(directory: RunDirectory) -> None:
    directory.whole("summary.json", "old")
    directory.whole("summary.json", "new")
    assert "new" == (directory.path / "summary.json").read_text(encoding="utf-8")
    assert {".lock", "summary.json"} == {path.name for path in directory.path.iterdir()}


def test_json_has_no_bare_nan() -> None:
    tree = {"a": math.nan, 1: [math.inf, (-math.inf, 1.5)], "b": {"c": None, "d": True}}
    assert {"a": "nan", "1": ["inf", ["-inf", 1.5]], "b": {"c": None, "d": True}} == jsonable(tree)
    assert '{"a": "nan"}' == json.dumps(jsonable({"a": math.nan}), allow_nan=False)
