"""The tutorial, taken from its page: every command runs, in order, as its reader runs it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, Block, blocks

PAGE = ROOT / "docs" / "tutorial.md"
INSTALL, *STEPS = [block for block in blocks(PAGE) if block.language == "sh" or block.file]


def follow(block: Block, folder: Path) -> None:
    """Write the file a block is, or run its commands in a shell that stops at the first error."""
    if block.file:
        (folder / block.file).write_text(block.text, encoding="utf-8")
        return
    scripts = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euc", block.text],
        cwd=folder,
        env={**os.environ, "PATH": os.pathsep.join([str(scripts), os.environ["PATH"]])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert 0 == done.returncode, done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where somebody followed the page after installing."""
    folder = tmp_path_factory.mktemp("tutorial")
    for block in STEPS:
        follow(block, folder)
    return folder


def test_it_begins_with_installing() -> None:
    assert INSTALL.text.startswith("pip install")


@pytest.mark.slow
def test_the_runs_end_where_the_page_says(folder: Path) -> None:
    assert {"steps.csv", "report.html", "summary.json"} <= names(folder / "runs" / "tiny-cpu")
    assert {"step-00000030", "step-00000060", "step-00000090"} == names(
        folder / "runs" / "mine" / "checkpoints"
    )


def test_the_resumed_run_is_the_uninterrupted_one(folder: Path) -> None:
    whole = json.loads((folder / "whole.json").read_text(encoding="utf-8"))
    resumed = json.loads((folder / "runs" / "mine" / "summary.json").read_text(encoding="utf-8"))
    assert whole["digest"] == resumed["digest"]


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}
