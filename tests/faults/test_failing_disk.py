"""Training on a disk whose n-th operation fails, in C below Python, for each n."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import environment

HERE = Path(__file__).parent
DIGEST = 64

SWEEPS = [
    ("first", "ENOSPC", "once"),
    ("first", "EIO", "ever since"),
    ("resumed", "EIO", "once"),
    ("resumed", "ENOSPC", "ever since"),
]
UNNOTICED = [
    (start, "EINTR", mode) for start in ("first", "resumed") for mode in ("each once", "short")
]

Runs = dict[tuple[str, ...], list[dict[str, Any]]]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the library that makes calls fail."""
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs Linux and a C compiler")
    library = tmp_path_factory.mktemp("shim") / "failing_calls.so"
    source = str(HERE / "failing_calls.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


def sweep(shim: Path, root: Path, sweeps: list[tuple[str, ...]], stride: int) -> Runs:
    """Return the runs of each sweep, in one process."""
    words = [",".join((*one, str(stride))) for one in sweeps]
    done = subprocess.run(
        [sys.executable, HERE / "failing_disk.py", shim, root, *words],
        env=environment(LD_PRELOAD=str(shim)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    runs: Runs = {one: [] for one in sweeps}
    for line in done.stdout.splitlines():
        run = json.loads(line)
        runs[tuple(run["sweep"])].append(run)
    return runs


@pytest.fixture(scope="module")
def runs(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Return all that was swept with a stride, which needs torch but once."""
    return sweep(shim, tmp_path_factory.mktemp("swept"), [*SWEEPS, *UNNOTICED], 61)


def finished(run: dict[str, Any]) -> bool:
    return len(run["ended"]) == DIGEST and run["ended"].isalnum()


def check(runs: list[dict[str, Any]], start: str, mode: str) -> None:
    *struck, sound = runs
    expected = sound["ended"]
    assert finished(sound)
    assert len(struck) > 10
    for run in struck:
        # It went on to the same end, or stopped with a line that says what to do about it.
        if finished(run):
            assert expected == run["ended"], run
        else:
            assert run["ended"].startswith(("CheckpointError: ", "RunDirectoryError: ")), run
            assert "\n" not in run["ended"], run
        # No checkpoint was spoilt: there is always one to go on from, to the same end.
        assert [] == run["skipped"], run
        assert start == "first" or run["newest"], run
        assert expected == run["resumed"], run
    assert mode != "once" or any(finished(run) for run in struck)
    assert not all(finished(run) for run in struck)


@pytest.mark.parametrize("one", SWEEPS, ids=" ".join)
def test_training_survives_an_operation_that_fails(runs: Runs, one: tuple[str, ...]) -> None:
    check(runs[one], one[0], one[2])


@pytest.mark.slow
@pytest.mark.parametrize("one", [*SWEEPS, ("resumed", "EROFS", "ever since")], ids=" ".join)
def test_training_survives_every_operation_that_fails(
    shim: Path, tmp_path: Path, one: tuple[str, ...]
) -> None:
    check(sweep(shim, tmp_path, [one], 1)[one], one[0], one[2])


@pytest.mark.parametrize("one", UNNOTICED, ids=" ".join)
def test_interrupted_calls_and_short_writes_are_not_noticed(
    runs: Runs, one: tuple[str, ...]
) -> None:
    (run,) = runs[one]
    sound = runs["resumed", "EIO", "once"][-1]
    assert finished(sound)
    assert run["ended"] == sound["ended"] == run["resumed"]
    assert [] == run["skipped"]
    assert "step-00000005" == run["newest"]
    assert run["count"] > 100
