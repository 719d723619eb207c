"""A run directory that is moved or swapped by its path: nothing elsewhere is read or written."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from folders import tree
from support import tiny_trainer

from neaptide import NeaptideError, RunDirectoryError
from neaptide.checkpoint import writing
from neaptide.io.folder import Folder
from neaptide_plugins.profiler import SPEC as PROFILER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a reader's directory that looks like a run, whose checkpoints are older and newer."""
    for step in (1, 4, 900):
        root = tmp_path / "mine/checkpoints" / f"step-{step:08d}"
        with writing(root, step, {}) as writer, writer.file("data.bin") as file:
            file.write(b"mine")
    (root.parent / "step-00000001").rename(root.parent / ".old-step-00000001")
    (tmp_path / "mine/plugins/profiler").mkdir(parents=True)
    for name in ("steps.csv", "summary.json", ".lock", "plugins/profiler/snapshot.request"):
        (tmp_path / "mine" / name).write_text("mine\n", encoding="utf-8")
    return tmp_path / "mine"


def fitted(directory: Path, observe: Callable[..., None], steps: int = 8, **run: Any) -> Any:
    config = {
        "run": {"dir": str(directory), "keep": 2, "checkpoint_every": 1, "log_every": 1, **run},
        "train": {"steps": steps},
        "eval": {"every": 2},
        "plugins": {"profiler": {"snapshot_at": [2, 6]}},
    }
    trainer, batches = tiny_trainer(config, [PROFILER])
    with trainer:
        return trainer.fit(batches, validation=batches[:1], observe=observe)


def at(step: int, act: Callable[[], object]) -> Callable[..., None]:
    steps = count(1)
    return lambda *_: act() if next(steps) == step else None


@pytest.mark.parametrize("step", [1, 3, 8])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_run_whose_directory_becomes_a_link_ends_in_one_line(
    tmp_path: Path, mine: Path, step: int, *, elsewhere: bool
) -> None:
    place, before = tmp_path / "run", tree(mine)
    kept = {"checkpoint_dir": str(tmp_path / "kept")} if elsewhere else {}
    swapped = tmp_path / "kept" if elsewhere else place

    def swap() -> None:
        swapped.rename(tmp_path / "away")
        swapped.symlink_to(mine / "checkpoints" if elsewhere else mine)

    with pytest.raises(RunDirectoryError, match="is a symbolic link; move it away") as caught:
        fitted(place, at(step, swap), **kept)
    assert "\n" not in str(caught.value)
    assert before == tree(mine)


SWAPPING = """
import os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
while True:
    for name in os.listdir():
        if name.startswith("run-"):
            try:
                os.rename(name, "away")
                os.symlink("mine", name)
                os.unlink(name)
                os.rename("away", name)
            except OSError:  # the run made its directory again
                os.rename("away", f"old-{os.urandom(8).hex()}")
"""


def test_a_run_whose_directory_is_swapped_all_the_time_leads_nowhere(
    tmp_path: Path, mine: Path
) -> None:
    before, updates = tree(mine), []

    def observe(result: Any, _: Any) -> None:
        updates.append(result.step)

    with subprocess.Popen(
        [sys.executable, "-c", SWAPPING, str(tmp_path)], stdout=subprocess.PIPE
    ) as swapper:
        try:
            assert swapper.stdout is not None
            swapper.stdout.readline()
            end = time.monotonic() + 6
            for number in count():
                with suppress(NeaptideError):
                    fitted(tmp_path / f"run-{number}", observe)
                if time.monotonic() > end:
                    break
            assert swapper.poll() is None
        finally:
            swapper.kill()
    assert before == tree(mine)
    assert len(updates) > 3


def test_missing_parents_are_made_one_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    made = os.mkdir

    def swapping(path: Any, *given: Any, **named: Any) -> None:
        made(path, *given, **named)
        if path == "b":
            (tmp_path / "a/b").rename(tmp_path / "away")
            (tmp_path / "a/b").symlink_to(tmp_path / "mine")

    monkeypatch.setattr(os, "mkdir", swapping)
    with pytest.raises(NotADirectoryError, match="b is a symbolic link"):
        Folder(tmp_path / "a/b/c/run", make=True)
    assert [] == list((tmp_path / "mine").iterdir())
