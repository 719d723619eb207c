"""Builds the simulated GPU; runs its tests, those of device code, and the dry run of bench/gpu.py.

Without a C++ compiler nothing can be built: one line says so, and the run succeeds. A compiler that
CXX names must be there.
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
TESTS = ROOT / "tests"
MUTANTS = HERE / "test_mutants.py"
ELSEWHERE = (
    MUTANTS,
    *(
        TESTS / f"{path}.py"
        for path in (
            "contract/test_predictors_groups",
            "core/run/test_kernel_registry",
            "core/run/test_signals",
            "kernels/test_compiled",
            "kernels/test_interpreted",
            "kernels/state_codes/test_bits",
            "plugins/layer_streaming/test_kill",
            "plugins/layer_streaming/updates/test_stepping",
            "plugins/optimizer_offload/test_memory",
            "plugins/profiler/test_killed",
            "plugins/profiler/test_listing",
            "plugins/sharding/test_hybrid",
            "plugins/sharding/test_runs",
            "plugins/sharding/test_shared_saves",
            "toolkit/dry_run/test_processes",
            "toolkit/test_losses",
        )
    ),
)
"""Tests that run alone, and the longer ones of those that no device takes part in."""
COMPILERS = ("g++", "c++", "clang++")
"""What the package is built with where CXX names none, as its `setup.py` has it."""
HELPERS = TESTS / "helpers"
EVERY_PLUGIN = TESTS / "contract" / "test_every_plugin.py"
SUITE = (
    "simulated_gpu", "plugins", "kernels", "toolkit", "core/api", "core/loop", "core/run",
    "core/checkpoint", "core/test_devices.py",
)  # fmt: skip
"""Rooms of `tests/` in which something trains, copies or computes on a device."""
UNMEASURED = ("laws", "contract", "toolkit/testing")
"""Rooms whose tests run without coverage, which would slow them down."""
ROUNDED = (
    str(EVERY_PLUGIN), str(HERE / "test_streaming.py"), str(HERE / "test_plugins.py"),
    "-k", "loans or numerics or resident",
)  # fmt: skip
"""Tests that run again with a device that rounds otherwise than the CPU."""
ON_DEVICE = ("-m", "pytest", "--simulated-gpu", "-n", "2", "--dist", "worksteal")


def run(*command: str, **variables: str) -> None:
    """Run a command of this Python; exit with its status where it fails."""
    own = {**os.environ, **variables}
    done = subprocess.run([sys.executable, *command], check=False, cwd=ROOT, env=own)
    if done.returncode:
        sys.exit(done.returncode)


def run_suite() -> None:
    """Run the suite on the device, and say which lines that mention a device it covered."""
    sys.path.insert(0, str(HELPERS))
    from coverage_of_devices import SOURCES, files

    rooms = [str(EVERY_PLUGIN), *(str(TESTS / room) for room in SUITE)]
    unmeasured = [str(TESTS / room) for room in UNMEASURED]
    with tempfile.TemporaryDirectory() as folder:
        config, report = Path(folder) / "coveragerc", Path(folder) / "report.json"
        included = "\n    ".join(map(str, files()))
        config.write_text(
            f"[run]\nbranch = true\ndata_file = {folder}/data\ninclude =\n    {included}\n"
        )
        measured = ("--cov", f"--cov-config={config}", f"--cov-report=json:{report}")
        # Also where it is installed.
        here = os.pathsep.join(str(ROOT / folder) for folder in SOURCES)
        ignored = [f"--ignore={path}" for path in ELSEWHERE]
        later = f"--ignore={TESTS / 'toolkit' / 'testing'}"
        run(*ON_DEVICE, *rooms, *ignored, later, *measured, PYTHONPATH=here)
        run(*ON_DEVICE, *unmeasured, *ignored, f"--ignore={EVERY_PLUGIN}")
        run(*ON_DEVICE, *ROUNDED, DEVICE_ROUNDS_OTHERWISE="1")
        run(str(HELPERS / "coverage_of_devices.py"), str(report))


def found_compiler() -> str | None:
    """Return the compiler that CXX names, there or not, or else the first that is on PATH."""
    return os.environ.get("CXX") or next(filter(shutil.which, COMPILERS), None)


def main(arguments: list[str]) -> None:
    """Build, install and test. With arguments, run pytest with them and nothing else."""
    if (compiler := found_compiler()) is None:
        sys.stdout.write(f"simulated-gpu: skipped, no C++ compiler ({', '.join(COMPILERS)})\n")
        return
    if shutil.which(compiler) is None:
        sys.exit(f"simulated-gpu: there is no C++ compiler {compiler!r}, which CXX names")
    if not (headers := Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        sys.exit(f"simulated-gpu: Python's headers are not installed (no {headers})")
    pip = ("-I", "-m", "pip", "install", "-c", str(ROOT / "constraints.txt"))
    run(*pip, "--no-build-isolation", str(PACKAGE))
    if arguments:
        run(*ON_DEVICE, *arguments)
        return
    run("-m", "pytest", str(PACKAGE))
    run_suite()
    run(*ON_DEVICE, str(MUTANTS))  # they fork: no backward may have run before
    with tempfile.TemporaryDirectory() as out:
        run(str(ROOT / "bench" / "gpu.py"), "--dry-run", "--out", out)


if __name__ == "__main__":
    main(sys.argv[1:])
