"""`python -m simulated_gpu`: a program on the device, with the processes that it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

RACE = """\
import torch

weights = torch.zeros(64, device="cuda")
torch.cuda.synchronize()
with torch.cuda.stream(torch.cuda.Stream()):
    weights.fill_(1)
weights.sum()
"""
CHILD = f"""\
import subprocess, sys

done = subprocess.run([sys.executable, "-c", {RACE!r}])
print("the child ended with", done.returncode)
"""


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulated_gpu", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd)


def test_a_program_runs_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "beside.py").write_text(
        "import torch\nTHERE = torch.cuda.is_available\n"
    )
    (tmp_path / "folder" / "program.py").write_text(
        "import sys\nimport beside\nprint(__name__, sys.argv[1:], beside.THERE())\nsys.exit(3)\n"
    )
    done = run("folder/program.py", "--size", "2", cwd=tmp_path)
    assert (3, "__main__ ['--size', '2'] True\n", "") == (done.returncode, done.stdout, done.stderr)
    module = run("-m", "folder.program", cwd=tmp_path / "folder" / "..")
    assert "No module named 'beside'" in module.stderr, "of a module, the working folder is first"


@pytest.mark.parametrize(("text", "printed"), [(RACE, ""), (CHILD, "the child ended with 0\n")])
def test_a_race_is_told_and_the_status_is_1(tmp_path: Path, text: str, printed: str) -> None:
    (tmp_path / "program.py").write_text(text)
    done = run("program.py", cwd=tmp_path)
    assert (1, printed) == (done.returncode, done.stdout)
    assert done.stderr.startswith("races on the simulated device:\n")
    assert "reads" in done.stderr
    assert 1 == done.stderr.count("written by")


def test_an_error_keeps_its_traceback_and_the_races_before_it(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(RACE + "raise ValueError('enough')\n")
    done = run("program.py", cwd=tmp_path)
    assert 1 == done.returncode
    assert "races on the simulated device:" in done.stderr
    assert done.stderr.endswith("ValueError: enough\n")


def test_the_machine_is_the_same_in_every_process(tmp_path: Path) -> None:
    profile = {"name": "small", "rates": {"capacity": 1 << 30, "to_device": 1e9}}
    (tmp_path / "small.json").write_text(json.dumps(profile))
    asked = "import torch; print(torch.cuda.get_device_properties(0).total_memory)"
    (tmp_path / "program.py").write_text(
        "import subprocess, sys\n"
        f"{asked}\nsys.stdout.flush()\nsubprocess.run([sys.executable, '-c', {asked!r}])\n"
    )
    done = run("--profile", "small.json", "program.py", cwd=tmp_path)
    assert ([str(1 << 30)] * 2, "") == (done.stdout.split(), done.stderr)
    done = run("--profile", "small.json", "--capacity", "0.5", "program.py", cwd=tmp_path)
    assert ([str(1 << 29)] * 2, "") == (done.stdout.split(), done.stderr)


@pytest.mark.parametrize(
    ("first", "loaded"),
    [("json", "False False"), ("torch.nn", "True True"), ("simulated_gpu", "True True")],
)
def test_a_started_process_gets_the_device_with_torch(
    tmp_path: Path, first: str, loaded: str
) -> None:
    asked = (
        f"import sys, {first}; print('torch' in sys.modules, 'simulated_gpu' in sys.modules); "
        "import torch; from importlib.util import find_spec; "
        "print(torch.cuda.is_available(), torch.__spec__ is find_spec('torch'), "
        "torch.__spec__.loader.__class__.__name__)"
    )
    (tmp_path / "program.py").write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {asked!r}])\n"
    )
    done = run("program.py", cwd=tmp_path)
    assert ([loaded, "True True SourceFileLoader"], "") == (done.stdout.splitlines(), done.stderr)


def test_another_module_that_python_imports_at_its_start_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('the other one')\n")
    (tmp_path / "program.py").write_text(
        "import os, subprocess, sys\n"
        "os.environ['PYTHONPATH'] += os.pathsep + os.getcwd()\n"
        "subprocess.run([sys.executable, '-c', ''])\n"
    )
    assert "the other one\n" == run("program.py", cwd=tmp_path).stdout


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["nothing.py"], "there is no program 'nothing.py'"),
        (["--profile", "nothing.json", "program.py"], "No such file or directory: 'nothing.json'"),
        (["--profile", "program.py", "program.py"], "program.py: not JSON"),
        (["--capacity", "nan", "program.py"], "capacity must be a number from 0"),
    ],
)
def test_what_cannot_run_is_told_in_a_line(tmp_path: Path, given: list[str], why: str) -> None:
    (tmp_path / "program.py").touch()
    done = run(*given, cwd=tmp_path)
    assert 2 == done.returncode
    assert why in done.stderr.splitlines()[-1]


def test_without_a_program_the_usage_is_told(tmp_path: Path) -> None:
    done = run(cwd=tmp_path)
    assert (2, True) == (done.returncode, "python -m simulated_gpu" in done.stderr)
