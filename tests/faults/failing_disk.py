"""A run whose n-th file operation fails, for each n; prints a JSON line for each.

`LD_PRELOAD=SHIM failing_disk.py SHIM ROOT START,ERROR,MODE,STRIDE...`: every run is a forked child,
in a directory that is empty (START = first) or has a run of two updates (START = resumed). ERROR is
the name of an errno, MODE one of MODES; every STRIDE-th operation is tried. The line tells what the
run ended with, which checkpoint was the newest valid one then, and what the digest is once the run
was resumed on a sound disk.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from support import tiny_trainer

from neaptide import NeaptideError
from neaptide.api.rng import seed_all
from neaptide.checkpoint import newest_valid

MODES = {"once": 0, "ever since": 1, "each once": 2, "short": 3}
STEPS = 5


def fit(directory: Path, steps: int) -> str:
    config: dict[str, Any] = {
        "run": {"dir": str(directory), "checkpoint_every": 2, "keep": 1, "log_every": 1},
        "train": {"steps": steps},
    }
    seed_all(0)
    trainer, batches = tiny_trainer(config)
    with trainer:
        summary = trainer.fit(batches, resume="auto", allow_changes=True)
    return str(summary["digest"])


def ended(directory: Path) -> str:
    try:
        return fit(directory, STEPS)
    except NeaptideError as error:
        return f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - shown by the test that reads it
        return traceback.format_exc()


def attempt(shim: Any, directory: Path, at: int, error: int, mode: int) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # The run's directory is opened in its parent.
        shim.fault_arm(str(directory.parent).encode(), at, error, mode)
        result = ended(directory)
        os.write(writing, json.dumps([result, shim.fault_count()]).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        result, count = json.load(answer)
    os.waitpid(child, 0)
    newest, warnings = newest_valid(directory / "checkpoints")
    name = newest.name if newest is not None else ""
    found = {"at": at, "ended": result, "count": count, "newest": name, "skipped": warnings}
    return {**found, "resumed": ended(directory)}


def sweep(shim: Any, root: Path, start: str, error: str, mode: str, stride: int) -> None:
    directory, at = root / "place/run", 1
    directory.parent.mkdir(exist_ok=True)
    while True:
        if start == "resumed":
            shutil.copytree(root / "template", directory)
        found = attempt(shim, directory, at, getattr(errno, error), MODES[mode])
        line = {"sweep": [start, error, mode], **found}
        sys.stdout.write(json.dumps(line) + "\n")
        shutil.rmtree(directory, ignore_errors=True)
        if found["count"] < at or mode in ("each once", "short"):
            return
        at += stride


def main(library: str, root: str, *sweeps: str) -> None:
    torch.set_num_threads(1)
    shim = ctypes.CDLL(library)
    fit(Path(root) / "template", 2)
    for start, error, mode, stride in (words.split(",") for words in sweeps):
        sweep(shim, Path(root), start, error, mode, int(stride))


if __name__ == "__main__":
    main(*sys.argv[1:])
