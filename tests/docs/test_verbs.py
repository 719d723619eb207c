"""The page on verbs, presets and converters: its files are those of contrib/, its commands work."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import warm
from contributed import found_from
from pages import ROOT, Block, blocks, text_of
from support import environment

if TYPE_CHECKING:
    from pathlib import Path

PAGE = ROOT / "docs" / "verbs.md"
FILES = [block for block in blocks(PAGE) if block.file]
COMMANDS = [
    line for block in blocks(PAGE) if block.language == "sh" for line in block.text.splitlines()
]


@pytest.mark.parametrize("block", FILES, ids=str)
def test_what_is_shown_is_in_the_distribution(block: Block) -> None:
    assert flush(block.text) in flush(text_of(ROOT / "contrib" / str(block.file)))


def flush(text: str) -> str:
    """Return the lines of a text without their indents, which a block on a page has lost."""
    return "".join(f"{line.strip()}\n" for line in text.splitlines())


def test_each_kind_of_distribution_is_shown() -> None:
    kinds = ("verb", "preset", "converter")
    shown = {str(block.file).partition("/")[0] for block in FILES}
    assert {f"neaptide-example-{kind}" for kind in kinds} == shown


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a run and the settings of another framework are."""
    folder = tmp_path_factory.mktemp("reader")
    arguments = {"max_steps": 5, "max_grad_norm": 1.0}
    (folder / "training_args.json").write_text(json.dumps(arguments), encoding="utf-8")
    command = ["-m", "neaptide", "run", "--preset", "tiny-cpu", "--quiet"]
    steps = ("--set", "train.steps=4", "--set", "run.checkpoint_every=2")
    done = warm.run([*command, *steps], cwd=folder)
    assert 0 == done.returncode, done.stderr
    return folder


@pytest.mark.parametrize("line", COMMANDS)
def test_the_command_works(folder: Path, tmp_path: Path, line: str) -> None:
    paths = found_from(tmp_path)
    done = warm.run(["-m", *line.split()], cwd=folder, env=environment(*paths))
    assert 0 == done.returncode, done.stderr
