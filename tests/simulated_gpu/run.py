"""Builds the simulated GPU; runs its tests, those of device code, and the dry run of bench/gpu.py.

Without a C++ compiler nothing can be built: one line says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "contrib" / "neaptide-simulated-gpu"
MUTANTS = HERE / "test_mutants.py"
SUITE = (
    "simulated_gpu", "contract", "plugins/layer_streaming/calls", "kernels/test_ops.py",
    "kernels/test_tensor_table.py", "kernels/registry", "kernels/chunked_cross_entropy/test_op.py",
)  # fmt: skip
"""Tests that train, copy or compute on the device, wherever their files lie below `tests/`."""
ON_DEVICE = ("-m", "pytest", "--simulated-gpu", "-n", "2", "--dist", "worksteal")


def run(*command: str) -> None:
    """Run a command of this Python; exit with its status where it fails."""
    done = subprocess.run([sys.executable, *command], check=False, cwd=ROOT)
    if done.returncode:
        sys.exit(done.returncode)


def main(arguments: list[str]) -> None:
    """Build, install and test. With arguments, run pytest with them and nothing else."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        sys.stdout.write(f"simulated-gpu: skipped, there is no C++ compiler {compiler!r}\n")
        return
    if not (headers := Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        sys.exit(f"simulated-gpu: Python's headers are not installed (no {headers})")
    pip = ("-I", "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"))
    run(*pip, "--no-build-isolation", str(PACKAGE))
    if arguments:
        run(*ON_DEVICE, *arguments)
        return
    run("-m", "pytest", str(PACKAGE))
    tests = [str(ROOT / "tests" / part) for part in SUITE]
    run(*ON_DEVICE, *tests, "--ignore", str(MUTANTS))
    run(*ON_DEVICE, str(MUTANTS))  # they fork: no backward may have run before
    with tempfile.TemporaryDirectory() as out:
        run(str(ROOT / "bench" / "gpu.py"), "--dry-run", "--out", out)


if __name__ == "__main__":
    main(sys.argv[1:])
