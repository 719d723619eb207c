"""Programs on the simulated device: their rates, and the races of every process they start."""

from __future__ import annotations

import atexit
import json
import os
import shutil
from pathlib import Path

import simulated_gpu

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
    shutil.copy(Path(__file__).with_name("_hook.py"), folder / "sitecustomize.py")
    paths = [str(folder), os.environ.get("PYTHONPATH")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))


def begin(folder: Path) -> None:
    """Begin a process that the program started: be the same machine, tell races at the end."""
    simulated_gpu.configure(**json.loads((folder / _RATES).read_text("utf-8")))
    atexit.register(write_races, folder)


def write_races(folder: Path) -> None:
    """Append this process's races to the file of all."""
    if found := simulated_gpu.races():
        with (folder / _RACES).open("a", encoding="utf-8") as file:
            file.write("".join(f"{race}\n" for race in found))


def races_of_all(folder: Path) -> str:
    """Return the races of all processes that have ended, or an empty text."""
    path = folder / _RACES
    return path.read_text("utf-8") if path.exists() else ""
