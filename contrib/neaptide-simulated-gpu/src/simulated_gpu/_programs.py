"""Programs on the simulated device: their rates, and the races of every process they start."""

from __future__ import annotations

import atexit
import json
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

import simulated_gpu

_HOOK = "sitecustomize"
"""A module that Python imports when it starts, before anything else."""
_TEXT = """\
try:
    from simulated_gpu import _programs

    _programs.begin({folder!r})
except Exception as error:  # Python would print it, and go on without the device
    raise SystemExit("no simulated device: " + repr(error)) from error
"""
_RATES, _RACES = "rates.json", "races.txt"


def prepare(folder: Path, profile: Path | None, capacity: float | None) -> None:
    """Configure the device here, and in each Python process that this one starts.

    `folder` is for what the processes have in common. `capacity` is in GiB.
    """
    rates = {} if profile is None else json.loads(profile.read_text("utf-8"))["rates"]
    if capacity is not None:
        rates["capacity"] = int(capacity * 2**30)
    simulated_gpu.configure(**rates)
    (folder / _RATES).write_text(json.dumps(rates), "utf-8")
    (folder / f"{_HOOK}.py").write_text(_TEXT.format(folder=str(folder)), "utf-8")
    paths = [str(folder), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def begin(name: str) -> None:
    """Begin a process that the program started: be the same machine, tell races at the end."""
    folder = Path(name)
    simulated_gpu.configure(**json.loads((folder / _RATES).read_text("utf-8")))
    atexit.register(write_races, folder)
    other = PathFinder.find_spec(_HOOK, [path for path in sys.path if Path(path) != folder])
    if other is not None and other.loader is not None:
        other.loader.exec_module(module_from_spec(other))


def write_races(folder: Path) -> None:
    """Append this process's races to the file of all."""
    if found := simulated_gpu.races():
        with (folder / _RACES).open("a", encoding="utf-8") as file:
            file.write("".join(f"{race}\n" for race in found))


def races_of_all(folder: Path) -> str:
    """Return the races of all processes that have ended, or an empty text."""
    path = folder / _RACES
    return path.read_text("utf-8") if path.exists() else ""
