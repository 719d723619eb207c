"""Builds the simulated GPU, and runs its own tests and the tests of this folder on it.

Without a C++ compiler or Python's headers nothing can be built: one line says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "contrib" / "neaptide-simulated-gpu"


def missing() -> str | None:
    """Return what this machine lacks to build the extension, or None."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        return f"there is no C++ compiler {compiler!r}"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "Python's headers are not installed"
    return None


def run(*command: str) -> None:
    """Run a command of this Python; exit with its status where it fails."""
    done = subprocess.run([sys.executable, *command], check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def main(arguments: list[str]) -> None:
    """Build, install and test."""
    if lacks := missing():
        sys.stdout.write(f"simulated-gpu: skipped, {lacks}\n")
        return
    pip = ("-I", "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"))
    run(*pip, "--no-build-isolation", str(PACKAGE))
    run("-m", "pytest", str(PACKAGE), *arguments)
    here = Path(__file__).parent
    mutants = str(here / "test_mutants.py")
    on_device = ("-m", "pytest", "--simulated-gpu", "-n", "2", "--dist", "worksteal")
    run(*on_device, str(here), "--ignore", mutants, *arguments)
    run(*on_device, mutants, *arguments)  # they fork: no backward may have run before


if __name__ == "__main__":
    main(sys.argv[1:])
