"""`run.py` is skipped only where no C++ compiler is there, and takes what the package takes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = Path(__file__).with_name("run.py")
SETUP = RUN.parents[2] / "contrib" / "neaptide-simulated-gpu" / "setup.py"


def run(path: str, **named: str) -> subprocess.CompletedProcess[str]:
    own = {name: value for name, value in os.environ.items() if name != "CXX"}
    own |= {"PATH": path, **named}
    command = [sys.executable, str(RUN), "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=own)


def test_without_a_compiler_it_is_skipped(tmp_path: Path) -> None:
    done = run(str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "simulated-gpu: skipped, no C++ compiler (g++, c++, clang++)\n"


def test_a_compiler_that_cxx_names_and_that_is_not_there_fails() -> None:
    done = run(os.environ["PATH"], CXX="nothere")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "simulated-gpu: there is no C++ compiler 'nothere', which CXX names\n"


@pytest.mark.parametrize("name", ["g++", "c++", "clang++"])
def test_any_of_the_compilers_is_one(name: str, tmp_path: Path) -> None:
    compiler = tmp_path / name
    compiler.write_text("")
    compiler.chmod(0o755)
    code = f"import runpy; print(runpy.run_path({str(RUN)!r})['found_compiler']())"
    own = {name: value for name, value in os.environ.items() if name != "CXX"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=own | {"PATH": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout == f"{name}\n"


def compilers(file: Path) -> tuple[str, ...]:
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "COMPILERS":
            return ast.literal_eval(node.value)  # type: ignore[no-any-return]  # a tuple of names
    raise AssertionError(file)


def test_the_package_is_built_with_the_same_compilers() -> None:
    assert compilers(RUN) == compilers(SETUP)
