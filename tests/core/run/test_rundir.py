"""The run directory: one process at a time, and files that survive a crash and a full disk."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from support import tiny_trainer

from neaptide import RunDirectoryError, StepRecord
from neaptide.api.records import COLUMNS
from neaptide.io.folder import replace_file
from neaptide.io.jsonable import jsonable
from neaptide.run.rundir import RunDirectory
from neaptide_toolkit.records.appending import LONGEST_LINE
from neaptide_verbs.report.files import objects
from neaptide_verbs.report.steps import _columns

if TYPE_CHECKING:
    from collections.abc import Iterator

HOLD = """
import sys
from pathlib import Path
from neaptide import StepRecord
from neaptide.run.rundir import RunDirectory
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


def test_the_columns_are_the_records_fields_and_the_report_finds_all_it_looks_for() -> None:
    assert COLUMNS == tuple(attrs.asdict(row(1)))
    found = _columns(COLUMNS)
    assert found is not None
    known = attrs.asdict(found)
    tiers = known.pop("tiers")
    assert {"device", "host"} == set(tiers.values())
    assert None not in known.values()


def test_a_row_cut_short_by_a_kill_is_dropped(directory: RunDirectory) -> None:
    for step in (1, 2):
        directory.row(row(step))
    path = directory.path / "steps.csv"
    whole = path.read_text(encoding="utf-8")
    for cut in ("3,fu", "3", "2,full,0.5,false,,,0.1", "2"):
        path.write_text(whole + cut, encoding="utf-8")
        directory.rewind(3, {})
        assert whole == path.read_text(encoding="utf-8")


def test_a_line_of_json_cut_short_is_dropped(directory: RunDirectory) -> None:
    directory.line("events.jsonl", {"event": "one", "step": 1})
    path = directory.path / "events.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole + whole[:9], encoding="utf-8")
    directory.rewind(5, {})
    assert whole == path.read_text(encoding="utf-8")


def test_rewinding_drops_what_came_later_and_keeps_what_has_no_step(
    directory: RunDirectory,
) -> None:
    for step in (1, 2, 3):
        directory.row(row(step))
        directory.line("metrics.jsonl", {"step": step, "loss": 1.0})
        directory.line("events.jsonl", {"event": "e", "step": step})
    directory.line("events.jsonl", {"event": "no step"})
    assert 2 == directory.rewind(2, {})[0]
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
    assert 1 == directory.rewind(5, {})[0]
    assert whole == path.read_bytes()


@pytest.mark.parametrize("step", ["9" * 15, "9" * 5000])
def test_a_row_of_an_impossible_step_is_dropped(directory: RunDirectory, step: str) -> None:
    directory.row(row(1))
    path = directory.path / "steps.csv"
    whole = path.read_text(encoding="utf-8")
    path.write_text(f"{whole}{step}{',' * (len(COLUMNS) - 1)}\n", encoding="utf-8")
    assert 1 == directory.rewind(5, {})[0]
    assert whole == path.read_text(encoding="utf-8")


def test_without_rows_no_update_has_one(directory: RunDirectory) -> None:
    (directory.path / "steps.csv").write_text(",".join(COLUMNS) + "\n", encoding="utf-8")
    assert 0 == directory.rewind(5, {})[0]


def test_starting_afresh_removes_the_records(directory: RunDirectory) -> None:
    directory.row(row(1))
    directory.whole("summary.json", "{}")
    directory.start_afresh()
    assert [".lock"] == [path.name for path in directory.path.iterdir()]


def texts(directory: Path) -> dict[str, str]:
    """Return the text of every file but the lock, by its path."""
    return {
        str(path.relative_to(directory)): path.read_text(encoding="utf-8")
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_starting_afresh_moves_aside_what_earlier_runs_left(tmp_path: Path) -> None:
    names = ("plugins/gone/deep/a.csv", "plugins/watch/snapshot.json", "report.html")
    moved = []
    for run in ("first", "second", "third"):
        held = RunDirectory(tmp_path)
        moved.append(held.start_afresh())
        held.close()
        for name in names:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(run, encoding="utf-8")
    assert [None, tmp_path / "earlier-1", tmp_path / "earlier-2"] == moved
    expected = {"earlier-1": "first", "earlier-2": "second", ".": "third"}
    assert {
        str(Path(folder, name)): run for folder, run in expected.items() for name in names
    } == texts(tmp_path)


def test_starting_afresh_leaves_alone_what_plugins_have_begun_already(tmp_path: Path) -> None:
    folder = tmp_path / "run/plugins/watch"
    folder.mkdir(parents=True)
    for name in ("old.csv", "replaced.csv"):
        (folder / name).write_text("earlier", encoding="utf-8")
    held = RunDirectory(tmp_path / "run")
    (folder / "new.csv").write_text("own", encoding="utf-8")
    replace_file(folder / "replaced.csv", b"own")
    held.start_afresh()
    held.close()
    assert {
        "earlier-1/plugins/watch/old.csv": "earlier",
        "plugins/watch/new.csv": "own",
        "plugins/watch/replaced.csv": "own",
    } == texts(tmp_path / "run")


def test_a_plugins_folder_that_is_a_link_is_somebody_elses(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/mine.csv").write_text("mine", encoding="utf-8")
    (tmp_path / "run/plugins").mkdir(parents=True)
    (tmp_path / "run/plugins/watch").symlink_to(tmp_path / "elsewhere")
    held = RunDirectory(tmp_path / "run")
    assert held.start_afresh() is None
    held.close()


def test_a_line_longer_than_readers_take_is_cut_and_read(directory: RunDirectory) -> None:
    directory.line("events.jsonl", {"event": "e", "step": 1, "text": "x" * 100_000})
    values = {"event": "e", "step": 2, "text": f"a{'x' * LONGEST_LINE}z", "all": [1] * LONGEST_LINE}
    directory.line("events.jsonl", values)
    damage: Counter[str] = Counter()
    first, second = objects(directory.path / "events.jsonl", damage)
    assert Counter() == damage
    assert "x" * 100_000 == first["text"]
    assert ("e", 2, "a", "z") == (
        second["event"],
        second["step"],
        second["text"][0],
        second["text"][-1],
    )
    assert {1001} == {len(second[key]) for key in ("text", "all")}


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


def test_what_plugins_say_as_a_run_starts_is_among_its_events(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run")}, "plugins": {"int8": {}}}

    def started() -> int:
        lines = (tmp_path / "run" / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return sum(json.loads(line)["event"] == "int8.started" for line in lines)

    for _ in range(2):  # the second one starts afresh in the same place
        trainer, batches = tiny_trainer(config)
        with trainer:
            trainer.step(batches[0])
            trainer.save(tmp_path / "saved")
        assert 1 == started()
    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.load(tmp_path / "saved")
        trainer.step(batches[1])
    assert 1 == started()  # said already


def test_a_run_whose_lock_was_deleted_takes_it_again(directory: RunDirectory) -> None:
    (directory.path / ".lock").unlink()
    directory.row(row(1))
    with pytest.raises(RunDirectoryError, match="another process"):
        RunDirectory(directory.path)


def test_a_run_whose_directory_another_run_has_taken_writes_no_more(
    directory: RunDirectory,
) -> None:
    directory.row(row(1))
    (directory.path / ".lock").unlink()
    other = RunDirectory(directory.path)
    other.row(row(2))
    before = texts(directory.path)
    for write in (
        lambda: directory.row(row(3)),
        lambda: directory.line("events.jsonl", {"event": "e"}),
        lambda: directory.whole("summary.json", "{}"),
        lambda: directory.checkpoints,
        lambda: directory.rewind(1, {}),
        directory.start_afresh,
    ):
        with pytest.raises(RunDirectoryError, match=r"another process \(pid \d+\) trains in"):
            write()
    assert before == texts(directory.path)
    other.close()


def test_a_run_whose_directory_was_deleted_saves_there_again(tmp_path: Path) -> None:
    config = {"run": {"dir": str(tmp_path / "run"), "checkpoint_every": 2}, "train": {"steps": 6}}

    def delete(result: Any, _: Any) -> None:
        if result.step == 3:
            shutil.rmtree(tmp_path / "run")

    trainer, batches = tiny_trainer(config)
    with trainer:
        trainer.fit(batches, observe=delete)
    saved = sorted(path.name for path in (tmp_path / "run/checkpoints").iterdir())
    assert ["step-00000004", "step-00000006"] == saved


def test_a_run_whose_directory_was_moved_does_not_share_the_new_one(tmp_path: Path) -> None:
    moved = RunDirectory(tmp_path / "run")
    moved.path.rename(tmp_path / "away")
    with closing(RunDirectory(tmp_path / "run")):
        with pytest.raises(RunDirectoryError, match="another process"):
            moved.row(row(1))
        with pytest.raises(RunDirectoryError, match="another process"):
            _ = moved.checkpoints
    moved.close()


def test_a_run_whose_checkpoints_are_elsewhere_is_not_begun_anew(tmp_path: Path) -> None:
    def fit(**run: Any) -> None:
        config = {"run": {"dir": str(tmp_path / "run"), **run}, "train": {"steps": 2}}
        trainer, batches = tiny_trainer(config)
        with trainer:
            trainer.fit(batches)

    fit(checkpoint_dir=str(tmp_path / "disk"))
    before = texts(tmp_path / "run")
    with pytest.raises(RunDirectoryError, match=f"whose checkpoints are in {tmp_path}/disk; go on"):
        fit()
    assert before["steps.csv"] == texts(tmp_path / "run")["steps.csv"]
