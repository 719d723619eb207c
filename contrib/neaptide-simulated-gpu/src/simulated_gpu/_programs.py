"""Programs on the simulated device: their rates, and the races of every process they start."""

from __future__ import annotations

import atexit
import json
import os
import shutil
from pathlib import Path
from typing import Any

import simulated_gpu
from simulated_gpu.machine import read_profile

_RATES, _RACES = "rates.json", "races.txt"


def rates_of(profile: Path | None, capacity: float | None) -> dict[str, Any]:
    """Return the rates of a profile, checked, with another capacity in GiB if one is given."""
    rates = {} if profile is None else read_profile(profile)
    return rates if capacity is None else {**rates, "capacity": capacity * 2**30}


def prepare(folder: Path, rates: dict[str, Any]) -> None:
    """Let each Python process that this one starts have a device of these rates.

    `folder` is for what the processes have in common.
    """
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
