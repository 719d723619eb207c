"""Count damaged checkpoints that load without an error, and show how a run ends by `sys.exit(0)`.

    python bench/reliability.py [--json PATH] [--flips N]

Needs `pip install lightning accelerate` in addition to Neaptide; trainers that are not installed
are left out and listed. Every trainer trains the net of `overhead.py` for three steps and saves a
checkpoint. One bit of one of its files is flipped, at N places at equal distances over all bytes,
and a forked process loads the checkpoint in the trainer's own way. What comes out:

    error        an error is raised
    same         the weights and the optimizer's state are as saved
    other        they are others, and nothing was said

A program of each trainer calls `sys.exit(0)` in the third step; the exit code is what a job queue
sees. `neaptide run` trains the same model from a configuration.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from reliabilities.trainers import SUBJECTS, exiting

from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Callable


def outcome(train: Callable[..., str], directory: Path, expected: str) -> str:
    """Load the checkpoint in a forked process, which the damage may end; return what came out."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = "error"
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            said = "same" if train(directory, load=True) == expected else "other"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said or "error"


def flipped(directory: Path, part: int, parts: int) -> tuple[Path, bytes]:
    """Flip a bit, that far into all bytes of the checkpoint; return the file and its content."""
    files = sorted(path for path in (directory / "saved").rglob("*") if path.is_file())
    at = sum(path.stat().st_size for path in files) * (2 * part + 1) // (2 * parts)
    for path in files:
        content = path.read_bytes()
        if at < len(content):
            path.write_bytes(
                content[:at] + bytes([content[at] ^ 1 << part % 8]) + content[at + 1 :]
            )
            return path, content
        at -= len(content)
    msg = "the checkpoint is empty"
    raise AssertionError(msg)


def flips(train: Callable[..., str], directory: Path, parts: int) -> list[dict[str, Any]]:
    """Return what came out of each flip; the last row is the sound checkpoint."""
    expected, found = train(directory), []
    for part in range(parts):
        path, content = flipped(directory, part, parts)
        came = outcome(train, directory, expected)
        found.append({"part": part, "file": path.name, "outcome": came})
        path.write_bytes(content)
    return [*found, {"file": "none", "outcome": outcome(train, directory, expected)}]


def exit_code(*words: str | Path, directory: Path) -> int:
    """Return the exit code of a process that trains and leaves."""
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(  # noqa: S603 - Python itself, and fixed words
        [sys.executable, *words], cwd=directory, env=environment, check=False, **quiet
    )
    return done.returncode


_TASK = """
from overheads.task import batches, net
from reliabilities.trainers import exiting

def model():
    return net(), exiting()

def data():
    return batches()
"""


def run_exit_code(directory: Path) -> int:
    """Return the exit code of `neaptide run` whose loss leaves the process."""
    (directory / "task.py").write_text(_TASK, encoding="utf-8")
    config = {"model": {"name": "task:model"}, "data": {"name": "task:data"}}
    (directory / "my.json").write_text(json.dumps(config), encoding="utf-8")
    return exit_code("-m", "neaptide", "run", "my.json", directory=directory)


def row(name: str, train: Callable[..., str], parts: int) -> dict[str, Any]:
    """Measure one trainer."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        *damaged, sound = flips(train, directory, parts)
        assert sound["outcome"] == "same", f"{name} does not load its own checkpoint"
        counts = {
            kind: sum(one["outcome"] == kind for one in damaged)
            for kind in ("error", "same", "other")
        }
        code = exit_code(Path(__file__), "--exit", name, directory=directory)
        return {"subject": name, **counts, "exit_code": code, "flips": damaged}


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json")
    parser.add_argument("--flips", type=int, default=50)
    parser.add_argument("--exit", choices=SUBJECTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if options.exit:
        with tempfile.TemporaryDirectory() as place:
            SUBJECTS[options.exit][1](Path(place), exiting())
        return
    rows, versions = [], {}
    for name, (distribution, train) in SUBJECTS.items():
        if find_spec(distribution) is None:
            sys.stderr.write(f"{name} is left out: pip install {distribution}\n")
            continue
        versions[name] = metadata.version(distribution)
        rows.append(row(name, train, options.flips))
    with tempfile.TemporaryDirectory() as place:
        code = run_exit_code(Path(place))
    print("| trainer | error | same | other | exit code of sys.exit(0) |\n|---|---|---|---|---|")
    for one in rows:
        counts = " | ".join(str(one[kind]) for kind in ("error", "same", "other", "exit_code"))
        print(f"| {one['subject']} | {counts} |")
    print(f"| `neaptide run` | | | | {code} |")
    if options.json:
        content = {"machine": facts(), "versions": versions, "rows": rows, "neaptide_run": code}
        Path(options.json).write_text(json.dumps(content, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
