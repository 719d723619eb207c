"""Links, pipes and folders in a run directory: nothing outside changes, and nothing hangs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from folders import tree
from planted import KINDS as PLANTED
from planted import folder, pipe, symbolic, symbolic_to_a_folder
from support import tiny_trainer

from neaptide import CheckpointError, NeaptideError, RunDirectoryError
from neaptide.checkpoint import checkpoints, newest_valid, prune, recover, verify, writing
from neaptide.cli import main
from neaptide_plugins.profiler import SPEC as PROFILER
from neaptide_plugins.tensorboard import SPEC as TENSORBOARD

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

RECORDS = ("steps.csv", "metrics.jsonl", "events.jsonl")
FILES = (*RECORDS, "config.toml", "machine.json", "summary.json", "report.html", ".lock")
PROFILED = ("memory.csv", "tiers.csv", "phases.csv", "table.txt", "memory.png", "snapshot.request")
PLACES = (
    *FILES,
    *(f".{name}.tmp" for name in FILES),
    *(f"plugins/profiler/{name}" for name in PROFILED),
    "plugins/profiler/memory.partial",
    *("checkpoints", "checkpoints/step-00000004", "checkpoints/.old-step-00000004"),
    *("plugins", "plugins/profiler", "plugins/tensorboard", "earlier-1"),
)


KINDS = (*PLANTED, folder)
LATER = (symbolic, symbolic_to_a_folder, pipe)


def each(kinds: tuple[Callable[[Path, Path], None], ...]) -> list[Any]:
    """Return every place with every kind, as parameters; four of five are slow."""
    return [
        pytest.param(
            place,
            kind,
            id=f"{place}-{kind.__name__}",
            marks=[pytest.mark.slow] if (row + column) % 5 else [],
        )
        for row, place in enumerate(PLACES)
        for column, kind in enumerate(kinds)
    ]


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a directory of the reader's, which nothing may touch."""
    inner = tmp_path / "mine/folder/profiler"
    inner.mkdir(parents=True)
    for path in (tmp_path / "mine/file", inner / "memory.csv", inner / "mine.csv"):
        path.write_text("mine\n", encoding="utf-8")
    return tmp_path / "mine"


def fitted(directory: Path, observe: Callable[..., None] = lambda *_: None, **run: Any) -> None:
    config = {
        "run": {"dir": str(directory), "keep": 1, "checkpoint_every": 2, **run},
        "train": {"steps": 4},
        "plugins": {"profiler": {"snapshot_at": [2]}, "tensorboard": {}},
    }
    trainer, batches = tiny_trainer(config, [PROFILER, TENSORBOARD])
    with trainer:
        trainer.fit(batches, resume="auto", observe=observe)


def told(call: Callable[[], None]) -> str | None:
    """Return the one line with which a call was refused, or None."""
    try:
        call()
    except NeaptideError as error:
        said = str(error)
    else:
        return None
    assert "\n" not in said
    return said


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("place", "kind"), each(KINDS))
def test_what_stands_in_a_files_place_leads_nowhere(
    tmp_path: Path, mine: Path, place: str, kind: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "run" / place
    target.parent.mkdir(parents=True)
    kind(target, mine)
    before = tree(mine)
    said = told(lambda: fitted(tmp_path / "run"))
    assert said is None or str(tmp_path / "run") in said
    assert main(["report", str(tmp_path / "run")]) in (0, 2)
    assert before == tree(mine)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("place", "kind"), each(LATER))
def test_what_takes_a_files_place_during_a_run_leads_nowhere(
    tmp_path: Path, mine: Path, place: str, kind: Callable[[Path, Path], None]
) -> None:
    target, before, steps = tmp_path / "run" / place, tree(mine), count(1)

    def swap(*_: Any) -> None:
        if next(steps) == 3:
            if os.path.lexists(target):
                target.rename(tmp_path / "away")
            kind(target, mine)

    told(lambda: fitted(tmp_path / "run", swap))
    assert before == tree(mine)


DEAD = ".tmp-step-00000004-4194305-0123abcd.neaptide"
"""Left by a process that cannot exist: its id is too large."""


def saved(root: Path, step: int, content: bytes = b"new") -> Path:
    directory = root / f"step-{step:08d}"
    with writing(directory, step, {}) as writer, writer.file("data.bin") as file:
        file.write(content)
    return directory


def saved_and_pruned(root: Path, step: int) -> None:
    saved(root, step)
    prune(root, 1)


@pytest.fixture
def theirs(mine: Path) -> Path:
    """Return what `mine` became: also a directory with checkpoints, one of them interrupted."""
    for step in (1, 2, 4):
        saved(mine, step)
    (mine / "step-00000002").rename(mine / ".old-step-00000002")
    (mine / "empty").mkdir()
    return mine


@pytest.mark.timeout(60)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "name", [DEAD, ".old-step-00000002", ".old-step-00000004", "step-00000001", "step-00000004"]
)
def test_what_stands_in_a_checkpoints_place_is_removed_or_refused(
    tmp_path: Path, theirs: Path, name: str, kind: Callable[[Path, Path], None]
) -> None:
    root, before = tmp_path / "checkpoints", tree(theirs)
    for step in {2, 3} - {int(name[-1:]) if name.startswith("step") else 0}:
        saved(root, step)
    kind(root / name, theirs)
    said = told(lambda: saved_and_pruned(root, 4))
    assert said is None or f"{root / name} " in said
    assert before == tree(theirs)
    if said is None:
        assert ["step-00000004"] == [path.name for path in root.iterdir()]


@pytest.mark.parametrize("name", ["empty", "step-00000004"])
def test_frozen_weights_are_not_saved_through_a_link(
    tmp_path: Path, theirs: Path, name: str
) -> None:
    root, before = tmp_path / "checkpoints", tree(theirs)
    root.mkdir()
    frozen = root / f"frozen-{'0' * 16}"
    frozen.symlink_to(theirs / name)
    with (
        pytest.raises(CheckpointError, match="is a symbolic link, so that saving would write"),
        writing(frozen, 0, {}),
    ):
        pass
    assert before == tree(theirs)


def test_a_checkpoint_behind_a_link_is_not_put_back(tmp_path: Path, theirs: Path) -> None:
    root, before = tmp_path / "checkpoints", tree(theirs)
    saved(root, 1)
    (root / "step-00000002").symlink_to(theirs / "step-00000002")
    assert root / "step-00000001" == newest_valid(root)[0]
    root.rename(tmp_path / "away")
    root.symlink_to(theirs)
    for act in (
        lambda: recover(root / "step-00000002"),
        lambda: saved(root, 4),
        lambda: prune(root, 1),
    ):
        with pytest.raises(CheckpointError) as caught:
            act()
        assert "\n" not in str(caught.value)
    assert before == tree(theirs)


@pytest.mark.parametrize("moment", ["before the file", "after the file"])
@pytest.mark.parametrize("what", ["checkpoints", "temporary"])
def test_what_is_swapped_during_a_save_leads_nowhere(
    tmp_path: Path, theirs: Path, what: str, moment: str
) -> None:
    root, before = tmp_path / "checkpoints", tree(theirs)
    saved(root, 3)

    def swap() -> None:
        (new,) = root.glob(".tmp-*")
        place = root if what == "checkpoints" else new
        place.rename(tmp_path / "away")
        place.symlink_to(theirs)

    def save() -> None:
        with writing(root / "step-00000004", 4, {}) as writer:
            if moment == "before the file":
                swap()
            with writer.file("data.bin") as file:
                file.write(b"new")
            if moment == "after the file":
                swap()

    told(save)
    assert before == tree(theirs)
    if what == "checkpoints":
        assert [] == verify(tmp_path / "away/step-00000004")


SWAPPING = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:
    os.rename("checkpoints", "away")
    try:
        os.symlink("mine", "checkpoints")
        os.unlink("checkpoints")
    except OSError:  # the save made the folder again
        pass
    while os.path.exists("away"):
        try:
            os.rename("away", "checkpoints")
        except OSError:
            os.rename("checkpoints", f"more-{os.urandom(8).hex()}")
"""


@pytest.mark.timeout(60)
def test_what_is_swapped_all_the_time_leads_nowhere(tmp_path: Path, theirs: Path) -> None:
    root, before = tmp_path / "checkpoints", tree(theirs)
    for step in (1, 2, 3):
        saved(root, step)
    written = 0
    with subprocess.Popen(
        [sys.executable, "-c", SWAPPING, str(tmp_path)], stdout=subprocess.PIPE
    ) as swapper:
        assert swapper.stdout is not None
        swapper.stdout.readline()
        end = time.monotonic() + 4
        for step in count(4):
            written += told(partial(saved_and_pruned, root, step)) is None
            if time.monotonic() > end:
                break
        assert swapper.poll() is None
        swapper.kill()
    assert before == tree(theirs)
    place = next(path for path in (tmp_path / "away", root) if path.is_dir())
    assert written
    assert all(verify(path) == [] for path in checkpoints(place))


def test_a_request_in_a_swapped_folder_is_not_taken_away(tmp_path: Path, mine: Path) -> None:
    (mine / "folder/profiler/snapshot.request").touch()
    target, before, steps = tmp_path / "run/plugins/profiler", tree(mine), count(1)

    def swap(*_: Any) -> None:
        if next(steps) == 2:
            target.rename(tmp_path / "away")
            target.symlink_to(mine / "folder/profiler")

    fitted(tmp_path / "run", swap)
    assert before == tree(mine)


def test_a_run_directory_that_is_a_link_is_the_users_choice(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    fitted(tmp_path / "run")
    assert {"steps.csv", "checkpoints"} <= {path.name for path in (tmp_path / "disk").iterdir()}


def test_linked_checkpoints_are_refused_with_a_way_out(tmp_path: Path, mine: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoints").symlink_to(mine)
    with pytest.raises(RunDirectoryError, match=r"checkpoints is a symbolic link.*checkpoint_dir"):
        fitted(tmp_path / "run")
    (tmp_path / "run/checkpoints").unlink()
    elsewhere = tmp_path / "disk/a run"
    fitted(tmp_path / "run", checkpoint_dir=str(elsewhere))
    fitted(tmp_path / "run", checkpoint_dir=str(elsewhere))  # resumes
    assert [".lock", "step-00000004"] == sorted(path.name for path in elsewhere.iterdir())
    assert not (tmp_path / "run/checkpoints").exists()


def test_two_runs_do_not_share_a_directory_of_checkpoints(tmp_path: Path) -> None:
    run = {"dir": str(tmp_path / "one"), "checkpoint_dir": str(tmp_path / "shared")}
    with tiny_trainer({"run": run})[0], pytest.raises(RunDirectoryError) as caught:
        tiny_trainer({"run": {**run, "dir": str(tmp_path / "other")}})
    assert f"trains in {tmp_path / 'shared'}; wait for it or set" in str(caught.value)
