"""Tests of the verbs: they are installed, listed in the help, and report damaged runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "step,phase,loss,was_predicted\n"
ROWS = (
    "1,warmup,8.0,false\n2,full,4.0,false\n3,predict,9.0,true\n3,full,nan,false\n4,full,1.0,false\n"
)


def neaptide(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run `neaptide` with these arguments. Return the finished process."""
    command = [sys.executable, "-m", "neaptide", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "steps.csv").write_text(HEADER + ROWS, encoding="utf-8")
    for step, size in (("step-00000002", 10), ("step-00000004", 1000)):
        folder = tmp_path / "checkpoints" / step
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").write_bytes(bytes(size))
        (folder / "manifest.json").write_bytes(b"{}")
    return tmp_path


def test_both_are_in_the_help() -> None:
    assert " losses " in neaptide("--help").stdout
    shown = neaptide("ckpt", "--help").stdout
    assert " size " in shown
    assert " verify " in shown


def test_losses_are_drawn_without_jumps_and_nan(run: Path) -> None:
    done = neaptide("losses", run)
    assert (0, "█▄▁  8 -> 1\n", "") == (done.returncode, done.stdout, done.stderr)
    narrow = json.loads(neaptide("losses", run, "--width", "2", "--json").stdout)
    assert {"run": str(run), "losses": [8.0, 2.5]} == narrow


def test_bytes_are_added_up_by_file(run: Path) -> None:
    done = neaptide("ckpt", "size", run)
    assert "weights.safetensors  1,010 bytes\nmanifest.json        4 bytes\n" == done.stdout
    assert {"weights.safetensors": 1010, "manifest.json": 4} == json.loads(
        neaptide("ckpt", "size", run, "--json").stdout
    )


@pytest.mark.parametrize("text", [None, HEADER, f"{HEADER}1,full,much,false\n"])
@pytest.mark.parametrize("verb", [("losses",), ("ckpt", "size")], ids=" ".join)
def test_what_is_no_run_is_one_line(
    tmp_path: Path, verb: tuple[str, ...], text: str | None
) -> None:
    if text is not None:
        (tmp_path / "steps.csv").write_text(text, encoding="utf-8")
    done = neaptide(*verb, tmp_path)
    assert (2, "", 1) == (done.returncode, done.stdout, done.stderr.count("\n"))
    assert done.stderr.startswith("error: ")
