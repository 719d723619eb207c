"""A run that goes out of RAM although its plan said that it fits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from plans import CONFIG, KINDS, neaptide

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = """
import torch


def lengths(longest):
    short = torch.zeros(8, 1, 64)
    return [short, short, short, short.expand(8, longest, 64)]
"""
MOST = 1 << 40
"""A length whose batch fits no address space: 2 PiB, of which the view takes no memory."""


def run(folder: Path, longest: int) -> tuple[int, str, str]:
    """Run four updates that are planned; return the exit code, the output and the error line."""
    (folder / "own.py").write_text(LENGTHS)
    config = CONFIG.format(layers=2, width=64)
    config = config.replace(f"{KINDS}:sequences", "own:lengths")
    config = config.replace("options = {width = 64}", f"options = {{longest = {longest}}}")
    (folder / "mine.toml").write_text(config)
    done = neaptide(folder, "run", "mine.toml", "--set=run.plan=always", "--set=train.steps=4")
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return done.returncode, done.stderr, "".join(lines)


@pytest.mark.slow
def test_a_plan_that_has_not_seen_the_largest_batch_is_said_to_be_wrong(tmp_path: Path) -> None:
    code, told, line = run(tmp_path, MOST)
    assert code == 4, told
    assert "not planned" not in told  # and it was not refused: the plan said that it fits
    assert line.startswith("error: out of memory: ")
    found = re.search(
        r"; the plan was wrong: it says (\d+\.\d) MiB of RAM, and 2048\.0 TiB were not enough, "
        r"[\d,]+ times as much$",
        line,
    )
    assert found is not None, line
    assert 100 < float(found[1]) < 2048


def test_the_same_run_without_that_batch_ends_well(tmp_path: Path) -> None:
    code, told, line = run(tmp_path, 1)
    assert (code, line) == (0, ""), told
