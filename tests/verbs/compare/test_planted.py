"""Links, hard links and pipes in the directory of a comparison lead nowhere, and nothing hangs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from folders import tree
from planted import KINDS

from neaptide.errors import RunDirectoryError
from neaptide.run.signals import StopRequest
from neaptide_verbs.compare.pool import Pool
from neaptide_verbs.compare.training import train
from neaptide_verbs.compare.trials import Result, TrainingTrial, read_result, write_result

if TYPE_CHECKING:
    from collections.abc import Callable

QUICK = ("compare", "tiny.toml", "--seeds", "7", "--baseline", "as-is", "--jobs", "1")
TRIAL = TrainingTrial("a", {"seed": 1})
RESULT = Result(1.5, 1.4, 1000, 12.5, 3, 1, 60, 0.5, "abc", 1)

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """Return a directory of the reader's, which nothing may touch."""
    for root in ("mine", "mine/folder", "mine/folder/key"):
        (tmp_path / root / "checkpoints/step-00000001").mkdir(parents=True)
    (tmp_path / "mine/file").write_text("step,seconds,was_predicted\n", encoding="utf-8")
    return tmp_path / "mine"


@pytest.mark.parametrize("kind", KINDS)
def test_the_log_of_the_workers_is_a_file_of_its_own(
    tmp_path: Path, mine: Path, kind: Callable[[Path, Path], None]
) -> None:
    (tmp_path / "out").mkdir()
    kind(tmp_path / "out/workers.log", mine)
    before = tree(mine)
    pool = Pool(tmp_path / "out", 1, 1, lambda *_: None, StopRequest())
    with pytest.raises(RunDirectoryError, match=r"cannot write .*workers.log: .*--out DIR"):
        pool.train([TRIAL])
    assert before == tree(mine)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["trials", "trials/key", "trials/key/result.json"])
def test_a_result_is_kept_in_the_comparison(
    tmp_path: Path, mine: Path, place: str, kind: Callable[[Path, Path], None]
) -> None:
    for theirs in ("trials/key", "folder/key", "folder"):
        write_result(mine / theirs, TRIAL, RESULT)
    target = tmp_path / "out" / place
    target.parent.mkdir(parents=True)
    kind(target, mine)
    before = tree(mine)
    assert read_result(tmp_path / "out/trials/key", TRIAL) is None
    try:
        write_result(tmp_path / "out/trials/key", TRIAL, RESULT)
    except OSError:
        assert not place.endswith("json")
    else:
        assert RESULT == read_result(tmp_path / "out/trials/key", TRIAL)
    assert before == tree(mine)


def test_a_result_of_any_size_and_depth_is_none(tmp_path: Path) -> None:
    for text in ("[" * 200_000, " " * (1 << 25)):
        write_result(tmp_path / "trials/key", TRIAL, RESULT)
        (tmp_path / "trials/key/result.json").write_text(text, encoding="utf-8")
        assert read_result(tmp_path / "trials/key", TRIAL) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", ["trials", "trials/key", "trials/key/.trial"])
def test_a_trial_is_trained_in_the_comparison(
    tmp_path: Path, mine: Path, place: str, kind: Callable[[Path, Path], None]
) -> None:
    target = tmp_path / "out" / place
    target.parent.mkdir(parents=True)
    kind(target, mine)
    before = tree(mine)
    with pytest.raises(RunDirectoryError, match=r"cannot write in .*key: .*--out DIR") as caught:
        train(TRIAL, tmp_path / "out/trials/key")
    assert "\n" not in str(caught.value)
    assert before == tree(mine)


PLANTING = """
import os, sys
from pathlib import Path
from tiny_task import data as tiny_data

def data():
    batches, validation = tiny_data()
    return Planting(batches.batches), validation

class Planting(list):
    def __iter__(self):
        for number, batch in enumerate(list.__iter__(self)):
            if number == 9:
                for place in [trial / "NAME" for trial in Path("out/trials").iterdir()]:
                    if os.path.lexists(place):
                        place.rename(f"away-{os.urandom(8).hex()}")
                    PLANT
                    Path("planted").touch()
            yield batch
"""
WAYS = {
    "symbolic": 'place.symlink_to(Path("mine/file").resolve())',
    "hard": 'place.hardlink_to("mine/file")',
    "pipe": "os.mkfifo(place)",
    "folder": 'place.symlink_to(Path("mine").resolve())',
}


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("steps.csv", "pipe"),
        ("events.jsonl", "symbolic"),
        ("checkpoints", "folder"),
        *(pytest.param("steps.csv", way, marks=pytest.mark.slow) for way in ("symbolic", "hard")),
        pytest.param("events.jsonl", "pipe", marks=pytest.mark.slow),
    ],
)
def test_what_takes_a_files_place_during_a_trial_leads_nowhere(
    neaptide: Any, folder: Path, mine: Path, name: str, way: str
) -> None:
    assert folder / "mine" == mine
    text = PLANTING.replace("NAME", name).replace("PLANT", WAYS[way])
    (folder / "planting.py").write_text(text, encoding="utf-8")
    before = tree(mine)
    done = neaptide(*QUICK, "--out", "out", "--set", "data.name=planting:data")
    assert before == tree(mine)
    assert (folder / "planted").exists()
    assert (done.code == 0) == (done.err.count("error") == 0), done.err
    if done.code:
        *_, last = done.err.splitlines()
        assert str(Path("out/trials")) in last, last
