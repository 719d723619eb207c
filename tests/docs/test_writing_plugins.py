"""The plugin of docs/writing-plugins.md, taken from the page: installed, listed, run, resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import attrs
import pytest
from pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "writing-plugins.md"
SAVERS = "memory-savers"


@attrs.frozen
class Reader:
    """Somebody who followed the page: a project folder, and where it was installed."""

    project: Path
    installed: Path

    def python(self, *arguments: str) -> str:
        """Run this Python in the project with the plugin installed; return what it prints."""
        paths = [str(self.installed), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.project,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stdout
        return done.stdout


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    reader = Reader(tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("installed"))
    for block in blocks(PAGE):
        if block.file is not None:
            path = reader.project / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
    install = ("pip", "install", "--quiet", "--no-deps", "--no-build-isolation")
    # What is imported afterwards is what was installed.
    for project, package in (
        (reader.project, "neaptide_gradient_noise"),
        (reader.project / SAVERS, "neaptide_memory_savers"),
    ):
        reader.python("-m", *install, "--target", str(reader.installed), str(project))
        shutil.rmtree(project / package)
    return reader


def test_it_is_listed(reader: Reader) -> None:
    assert "gradient-noise" in reader.python("-m", "neaptide", "plugins", "list")


def test_its_own_tests_pass(reader: Reader) -> None:
    reader.python("-m", "pytest", "-q", "-p", "no:cacheprovider", "tests")


@pytest.mark.slow
def test_the_two_that_save_memory_keep_the_contract_resident_and_streamed(reader: Reader) -> None:
    printed = reader.python("-m", "pytest", "-q", "-p", "no:cacheprovider", f"{SAVERS}/tests")
    assert "38 passed" in printed


@pytest.mark.parametrize("plugin", ["state_offload", "int8_probes"])
def test_a_plugin_that_saves_memory_takes_some_sixty_lines(plugin: str) -> None:
    (text,) = (
        block.text for block in blocks(PAGE) if block.file and block.file.endswith(f"{plugin}.py")
    )
    assert len(text.splitlines()) <= 75


def run(reader: Reader, name: str, *arguments: str) -> dict[str, object]:
    """Run noisy.toml in the run directory `runs/<name>`; return its summary."""
    where = ("--set", f"run.dir=runs/{name}")
    reader.python("-m", "neaptide", "run", "noisy.toml", *where, *arguments)
    path = reader.project / "runs" / name / "summary.json"
    summary: dict[str, object] = json.loads(path.read_text(encoding="utf-8"))
    return summary


def test_it_runs_and_resumes_to_the_same_digest(reader: Reader) -> None:
    whole = run(reader, "resumed")
    saved = reader.project / "runs" / "resumed" / "checkpoints"
    assert ["step-00000010", "step-00000020"] == sorted(path.name for path in saved.iterdir())
    shutil.rmtree(saved / "step-00000020")
    assert whole["digest"] == run(reader, "resumed", "--resume", "auto")["digest"]


def test_it_changes_training(reader: Reader) -> None:
    """Otherwise the test of resuming would prove nothing about the plugin."""
    noisy = run(reader, "noisy")
    quiet = run(reader, "quiet", "--set", "plugins.gradient-noise.enabled=false")
    assert noisy["final_loss"] != quiet["final_loss"]
