"""`neaptide plan` on the command line."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from plans import CONFIG, KINDS, neaptide, planned

from neaptide.errors import ConfigError
from neaptide_verbs.plan.machine import target

if TYPE_CHECKING:
    from pathlib import Path


def test_what_fits_ends_with_0_and_a_table(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "rtx4090", "--ram", "64")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "plan for NVIDIA GeForce RTX 4090"
    assert any(line.startswith("full backward") for line in lines)
    assert any("tokens/s" in line or "an update takes at least" in line for line in lines)
    assert lines[-1].startswith("fits, ")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]


def test_what_does_not_fit_ends_with_3_and_says_what_is_short(tmp_path: Path) -> None:
    done = planned(tmp_path, "--device", "0.1", "--ram", "64")
    assert done.returncode == 3
    assert "\ndoes not fit: the device needs " in done.stdout
    assert done.stderr == ""


@pytest.fixture(scope="module")
def nothing_fits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """Return how a search that finds nothing ended, and its folder: it tries many plans."""
    folder = tmp_path_factory.mktemp("nothing")
    machine = ("--device", "h200", "--ram", "0.01")
    return planned(folder, *machine, "--json", "--write", "fits.toml"), folder


def test_json_has_the_bytes_of_each_tier(nothing_fits: tuple[Any, Path]) -> None:
    done, _ = nothing_fits
    plan = json.loads(done.stdout)
    assert (done.returncode, plan["fits"]) == (3, False)
    assert plan["verdict"].startswith("does not fit: RAM needs")
    assert plan["tiers"].keys() == {"device", "RAM"}
    device = plan["tiers"]["device"]
    assert plan["peak_bytes"]["device"] == sum(device["kinds"].values())
    assert plan["seconds_per_step"] > 0
    assert plan["bound_by"] in plan["busy"]


def test_nothing_is_written_if_nothing_fits(nothing_fits: tuple[Any, Path]) -> None:
    done, folder = nothing_fits
    assert done.returncode == 3
    assert json.loads(done.stdout)["changes"] == []
    assert done.stderr.startswith("note: fits.toml is not written")
    assert not (folder / "fits.toml").exists()


@pytest.mark.slow
def test_a_model_larger_than_the_memory_is_planned_in_little(tmp_path: Path) -> None:
    """6.4 billion parameters; the model, its gradients and its state would be 96 GiB."""
    # VmHWM begins anew with the program; ru_maxrss has the peak of who started it.
    program = """
import atexit, pathlib, sys
from neaptide.cli import main

def peak():
    status = pathlib.Path("/proc/self/status").read_text()
    print(status.split("VmHWM:")[1].split()[0], file=sys.stderr)

atexit.register(peak)
sys.exit(main())
"""
    path = tmp_path / "mine.toml"
    path.write_text(CONFIG.format(layers=8, width=10_000))
    arguments = ["plan", str(path), "--device", "rtx4090", "--ram", "64", "--json"]
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 3, done.stderr
    kinds = json.loads(done.stdout)["tiers"]["device"]["kinds"]
    assert kinds["weights"] > 6.4e9 * 4
    assert int(done.stderr.splitlines()[-1]) < 2 * 2**20


@pytest.mark.parametrize(
    ("device", "ram", "configured", "text"),
    [
        ("rtx409", None, "auto", "no machine profile 'rtx409' (did you mean 'rtx4090'?)"),
        ("0", None, "auto", "a device has more than 0 GiB (got 0 @ --device)"),
        ("nan", None, "auto", "a device has more than 0 GiB (got nan @ --device)"),
        ("inf", None, "auto", "a device has more than 0 GiB (got inf @ --device)"),
        (None, 0.0, "auto", "a machine has more than 0 GiB of RAM (got 0 @ --ram)"),
        (None, math.nan, "auto", "a machine has more than 0 GiB of RAM (got nan @ --ram)"),
        (None, None, "cuda:99", "(got 'cuda:99') @ train.device"),
    ],
)
def test_a_machine_that_is_none_is_refused(
    device: str | None, ram: float | None, configured: str, text: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        target(device, ram, configured)
    assert text in str(raised.value)
    assert "\n" not in str(raised.value)


def test_code_of_the_user_may_print(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from neaptide_toolkit.testing import kinds\n"
        "def model():\n    print('building')\n    return kinds.deep(1, 64)\n"
    )
    own = 'version = 1\nmodel.name = "mine:model"\ntrain.device = "cpu"\n'
    own += f'data = {{name = "{KINDS}:sequences", options = {{width = 64}}}}\n'
    (tmp_path / "own.toml").write_text(own)
    done = neaptide(tmp_path, "plan", "own.toml", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fits"] is True
    assert "building" in done.stderr
