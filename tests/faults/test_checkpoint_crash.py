"""Checkpoints when processes die and disks fail, at every operation and at random moments."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from os import kill
from pathlib import Path
from signal import SIGKILL
from textwrap import dedent

import pytest

from neaptide.checkpoint import writing

SCRIPTS = Path(__file__).parents[1] / "core" / "checkpoint"
STEP = "step-00000007"
STARTS = ("first", "replace", "interrupted", "leftover")
OK, REFUSED, DIED, INTERRUPTED = 0, 3, 9, 130


def run(*arguments: object, prefix: tuple[str, ...] = ()) -> str:
    command = [*prefix, sys.executable, *map(str, arguments)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


Outcomes = Callable[[str, str], list[dict[str, object]]]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Give what each operation of a save led to, for a fault and a start; every sweep runs once."""

    @cache
    def sweep(fault: str, start: str) -> list[dict[str, object]]:
        root = tmp_path_factory.mktemp(f"{fault}-{start}")
        lines = run(SCRIPTS / "crash_points.py", root, fault, start).splitlines()
        return [json.loads(line) for line in lines]

    return sweep


def before(start: str) -> str:
    return "nothing" if start == "first" else "old"


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("fault", "statuses"),
    [
        ("exit", {DIED, OK}),
        ("torn", {DIED, OK}),
        ("power", {DIED, OK}),
        ("interrupt", {INTERRUPTED, OK}),
        ("error", {REFUSED, OK}),
        ("errors", {REFUSED, OK}),
    ],
)
def test_every_operation_leaves_the_old_or_the_new(
    outcomes: Outcomes, fault: str, statuses: set[int], start: str
) -> None:
    found = outcomes(fault, start)

    assert statuses == {one["status"] for one in found}
    assert {before(start), "new"} == {one["loaded"] for one in found}
    assert {"new"} == {one["loaded"] for one in found if one["status"] == OK}
    assert {"next"} == {one["next"] for one in found}
    assert [[STEP]] * len(found) == [one["entries"] for one in found]


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("fault", ["error", "errors"])
def test_the_error_says_which_checkpoint_stands(outcomes: Outcomes, fault: str, start: str) -> None:
    refused = [one for one in outcomes(fault, start) if one["status"] == REFUSED]

    for one in refused:
        message = str(one["message"])
        if one["loaded"] == "new":
            assert message.endswith("may not survive a power failure: Input/output error")
        else:
            assert message.startswith("cannot write checkpoint")
            told = "Input/output error; check the disk or set run.dir elsewhere"
            intact = f"{told}; the previous checkpoint is intact"
            # A disk that also fails to list the checkpoints does not tell that there is none.
            first = (told, intact) if fault == "errors" else told
            assert message.endswith(first if start == "first" else intact)


@pytest.mark.parametrize("start", ["replace", "interrupted", "leftover"])
def test_a_failed_save_puts_the_previous_back_at_once(outcomes: Outcomes, start: str) -> None:
    found = outcomes("error", start)

    assert [True] * len(found) == [one["in place"] for one in found]


def test_the_sweep_meets_every_kind_of_operation(outcomes: Outcomes) -> None:
    found = [one["operation"] for one in outcomes("exit", "replace")]

    assert {"open", "write", "fsync", "close", "mkdir", "rename", "unlink", "rmdir", ""} == {*found}
    assert 3 == found.count("rename")  # aside, into place, and away before deleting
    assert 5 == found.count("fsync")  # two data files, the manifest and both directories


def test_short_writes_are_completed(outcomes: Outcomes) -> None:
    (found,) = outcomes("short", "replace")

    assert (OK, "new") == (found["status"], found["loaded"])


def kill_at_random(root: Path, times: int) -> None:
    moments = random.Random(times)
    script = [sys.executable, str(SCRIPTS / "saving_in_a_loop.py"), str(root)]
    with subprocess.Popen(
        script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as saver:
        assert saver.stdin is not None
        assert saver.stdout is not None
        number = 0
        for _ in range(times):
            saver.stdin.write(f"{number + 1}\n")
            pid = int(saver.stdout.readline())
            wait_for(root / "saved", number + 1)
            time.sleep(moments.uniform(0, 0.06))
            kill(pid, SIGKILL)
            saver.stdin.write("wait\n")
            number = int(saver.stdout.readline())
            saved = int((root / "saved").read_text().split()[-1])
            assert number in {saved, saved + 1}
        saver.stdin.close()


def wait_for(log: Path, number: int) -> None:
    deadline = time.monotonic() + 60
    while not (log.exists() and str(number) in log.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 25)

    with writing(tmp_path / "step-00000001", 1, {}):
        pass
    assert {"saved", "step-00000001"} == {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_killed_at_200_random_moments(tmp_path: Path) -> None:
    kill_at_random(tmp_path, 200)


FILLING = """
    import json, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from crash_points import loaded, save
    from neaptide.errors import CheckpointError

    root = Path(sys.argv[1])
    directory = root / "step-00000007"
    save(directory, "old")
    for pages in range(40):
        ballast = (root / "ballast").open("wb", buffering=0)
        try:
            while ballast.write(bytes(4096)) == 4096: pass
        except OSError:
            pass
        ballast.truncate(max(0, ballast.tell() - 4096 * pages))
        ballast.close()
        error = ""
        try:
            save(directory, "new" * 100)
        except CheckpointError as refused:
            error = str(refused)
        print(json.dumps([pages, error, loaded(directory)]))
        (root / "ballast").unlink()
        save(directory, "old")
        assert [directory] == list(root.iterdir())
"""


def test_a_full_disk_at_every_page(tmp_path: Path) -> None:
    mount = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    inside = f'mount -t tmpfs -o size=1m none "{tmp_path}" && exec "$@"'
    probe = subprocess.run([*mount, inside, "sh", "true"], check=False, capture_output=True)
    if probe.returncode:
        pytest.skip(f"no small file system: {probe.stderr.decode().strip()}")

    lines = run("-c", dedent(FILLING), tmp_path, SCRIPTS, prefix=(*mount, inside, "sh"))
    found = [json.loads(line) for line in lines.splitlines()]

    refused = [one for one in found if one[1]]
    for _, error, loaded in refused:
        assert "old" == loaded
        assert error.endswith(
            "No space left on device; free space or set run.dir elsewhere; "
            "the previous checkpoint is intact"
        )
    assert {"new" * 100} == {loaded for _, error, loaded in found if not error}
    assert len(refused) > 10
    assert len(found) > len(refused)


LIMITED = """
    import resource, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from crash_points import loaded, save
    from neaptide.errors import CheckpointError

    directory = Path(sys.argv[1]) / "step-00000007"
    save(directory, "old")
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save(directory, "new" * 1000)
    except CheckpointError as error:
        print(error)
    print(loaded(directory))
"""


def test_a_limited_file_size(tmp_path: Path) -> None:
    error, loaded = run("-c", dedent(LIMITED), tmp_path, SCRIPTS).splitlines()

    assert "File too large; free space or set run.dir elsewhere" in error
    assert "old" == loaded
    assert [tmp_path / STEP] == list(tmp_path.iterdir())


INTERRUPTED_BY_SIGNALS = """
    import signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[2])
    from crash_points import loaded, save

    arrived = []
    signal.signal(signal.SIGALRM, lambda number, frame: arrived.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    directory = Path(sys.argv[1]) / "step-00000007"
    while len(arrived) < 100:
        save(directory, "new" * 1000)
        assert loaded(directory) == "new" * 1000
    signal.setitimer(signal.ITIMER_REAL, 0)
    print("done")
"""


def test_signals_do_not_break_a_save(tmp_path: Path) -> None:
    assert "done\n" == run("-c", dedent(INTERRUPTED_BY_SIGNALS), tmp_path, SCRIPTS)
