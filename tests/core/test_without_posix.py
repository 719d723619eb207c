"""What a system without `fcntl` and `resource` gets: every module, and a run in a directory."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

WITHOUT = """
import os, sys
import psutil, torch  # as they are on this system
sys.modules["fcntl"] = sys.modules["resource"] = None
"""

IMPORTING = """
import importlib, pkgutil
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "register_at_fork"):
    delattr(os, name)  # nor has Windows these
import neaptide, neaptide_kernels, neaptide_plugins, neaptide_toolkit, neaptide_verbs
imported = 0
packages = (neaptide, neaptide_kernels, neaptide_toolkit, neaptide_plugins, neaptide_verbs)
for package in packages:
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
            imported += 1
print(imported)
"""

RUNNING = """
from neaptide import HybridTrainer
from neaptide_toolkit.machine.facts import facts, memory
from neaptide_verbs.report.reading import read_run
from neaptide_toolkit.testing.tiny import tiny_loss, tiny_task
from pathlib import Path

task = tiny_task()
config = {
    "run": {"dir": "run"},
    "train": {"steps": 3},
    "plugins": {"profiler": {}},
}
with HybridTrainer(task.model, task.optimizer, loss_fn=tiny_loss, config=config) as trainer:
    assert 3 == trainer.fit(task.batches)["steps"]
assert facts()
assert (None, None) == (memory().locked_limit, memory().process_room)
print(read_run(Path("run")).status.kind)
"""


def said(script: str, folder: Path) -> tuple[str, str]:
    """Return what a process without the two modules writes to its output and to its errors."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip(), done.stderr


def test_every_module_is_imported(tmp_path: Path) -> None:
    imported, _ = said(IMPORTING, tmp_path)
    assert int(imported) > 300


def test_a_run_has_its_directory_and_says_that_nothing_holds_it(tmp_path: Path) -> None:
    status, errors = said(RUNNING, tmp_path)
    assert "finished" == status
    warning = f"this system has no file locks: do not start a second process in {tmp_path / 'run'}"
    assert 1 == errors.count(warning)
    assert {"steps.csv", "summary.json", "machine.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
