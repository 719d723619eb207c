"""The configurations in examples/ pass the check, and each fits the machine that it names."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import pytest
from pages import ROOT, text_of
from plans import neaptide
from support import some

if TYPE_CHECKING:
    from pathlib import Path

FILES = sorted((ROOT / "examples").glob("*.toml"))
PLANNED = [path for path in FILES if path.name != "quickstart.toml"]


def command_of(path: Path) -> list[str]:
    """Return the words of the command that plans a file, from its first comment."""
    (line,) = re.findall(r"^# +neaptide (plan .*)$", text_of(path), re.MULTILINE)
    return shlex.split(line)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_passes_the_check(path: Path) -> None:
    done = neaptide(ROOT, "config", "check", "--imports", str(path.relative_to(ROOT)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", some(PLANNED), ids=lambda path: path.stem)
def test_an_example_fits_its_machine(path: Path) -> None:
    command = command_of(path)
    assert command[1] == f"examples/{path.name}"
    assert {"--device", "--ram"} <= set(command)
    done = neaptide(ROOT, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("fits, ")]


def test_there_are_those_that_the_recipes_name() -> None:
    text = text_of(ROOT / "docs" / "recipes.md")
    assert set(re.findall(r"\(\.\./examples/([\w-]+\.toml)\)", text)) == {
        path.name for path in PLANNED
    }
    assert len(PLANNED) == 9
