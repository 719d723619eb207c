"""What CI runs: the README's commands, on every Python that the project names."""

from __future__ import annotations

import configparser
import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from contributed import FOLDERS
from pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
JOB: dict[str, Any] = WORKFLOW["jobs"]["test"]
MATRIX: list[dict[str, str]] = JOB["strategy"]["matrix"]["include"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def commands(entry: dict[str, str]) -> list[str]:
    """Return what a machine of the matrix runs."""
    given = [step["run"] for step in JOB["steps"] if "run" in step]
    return [re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda name: entry[name[1]], run) for run in given]


def test_it_runs_on_every_python_that_the_classifiers_name() -> None:
    prefix = "Programming Language :: Python :: "
    named = [line.removeprefix(prefix) for line in PROJECT["classifiers"] if prefix in line]
    assert named == [entry["python"] for entry in MATRIX]
    setup = [step for step in JOB["steps"] if step.get("uses", "").startswith("actions/setup-py")]
    assert ["${{ matrix.python }}"] == [step["with"]["python-version"] for step in setup]


def test_it_runs_the_readmes_commands_as_they_stand_there() -> None:
    block = next(iter(blocks(ROOT / "README.md")))
    assert block.text.splitlines() == commands(MATRIX[0])


@pytest.mark.parametrize("entry", MATRIX[1:], ids=lambda entry: entry["python"])
def test_on_other_pythons_it_runs_the_tests_alone(entry: dict[str, str]) -> None:
    first, second = commands(MATRIX[0])
    environment = f"py{entry['python'].replace('.', '')}"
    assert [first, f"{second} -e {environment}"] == commands(entry)


def test_it_runs_on_pushes_and_pull_requests() -> None:
    assert {"push", "pull_request"} == set(WORKFLOW[True])  # YAML takes `on` for a truth value


def test_it_ends_within_an_hour_and_a_half() -> None:
    assert 90 >= JOB["timeout-minutes"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_distribution_under_contrib_is_tested_without_the_others(folder: Path) -> None:
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini", encoding="utf-8")
    several = "" if "-example-" in folder.name else "-n 2 --dist worksteal "
    named = [
        f"python -I -m pip install --no-deps {{tox_root}}/contrib/{folder.name}",
        f"pytest {several}{{tox_root}}/contrib/{folder.name} {{posargs}}",
        f"python -I -m pip uninstall --yes {folder.name}",
    ]
    commands = tox["testenv:contrib"]["commands"].strip().splitlines()
    start = commands.index(named[0])
    assert named == commands[start : start + 3]
    assert start % 3 == 0
    assert folder.name in tox["testenv:contrib"]["commands_pre"]
