"""Every plugin on: thousands of steps leave nothing behind, and randomness decides nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import digest_after, plugin_with, stranger

HERE = Path(__file__).parent
KB = 1024


def run(directory: Path, steps: int, every: int, **environment: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, HERE / "everything_on.py", directory, str(steps), str(every)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(samples: list[dict[str, int]], after: int) -> None:
    """Compare what is held at the end with what was held after `after` updates."""
    rest = [sample for sample in samples if sample["step"] >= after]
    for kind in ("tensors", "descriptors", "threads", "maps"):
        # At once more in the first half than ever in the second: growth would show there.
        half = len(rest) // 2
        first, second = rest[:half], rest[half:]
        assert max(one[kind] for one in second) <= max(one[kind] for one in first), kind
    grown = rest[-1]["bytes"] - rest[0]["bytes"]
    assert grown < KB * (rest[-1]["step"] - rest[0]["step"])


@pytest.mark.slow
def test_1500_steps_leave_nothing_behind(tmp_path: Path) -> None:
    *samples, (_, plugins, jumps) = run(tmp_path / "run", 1500, 75)
    assert len(plugins) >= 8
    assert jumps > 0
    check(samples, 750)


@pytest.mark.slow
def test_10_000_steps_leave_nothing_behind(tmp_path: Path) -> None:
    *samples, _ = run(tmp_path / "run", 10_000, 250)
    check(samples, 1000)


@pytest.mark.slow
def test_the_same_seed_twice_is_the_same_to_the_bit(tmp_path: Path) -> None:
    # Sets and dicts of strings must not decide anything either: hashes differ.
    (one,) = run(tmp_path / "one", 40, 0, PYTHONHASHSEED="1")
    (other,) = run(tmp_path / "other", 40, 0, PYTHONHASHSEED="2")
    assert one == other
    columns = [
        [
            [cell for index, cell in enumerate(line.split(",")) if index not in {6, 7, 8}]
            for line in (tmp_path / name / "steps.csv").read_text().splitlines()
        ]
        for name in ("one", "other")
    ]
    assert columns[0] == columns[1]


@pytest.mark.parametrize("observer", [True, False])
def test_a_plugin_without_state_is_no_part_of_the_digest(observer: bool) -> None:  # noqa: FBT001 - a parameter of the test
    idle = stranger(plugin_with(), "idle", observer=observer)
    stateful = stranger(plugin_with(state_dict=lambda self: {"seen": 1}), "stateful")
    assert digest_after(3) == digest_after(3, plugins=[idle])
    assert digest_after(3) != digest_after(3, plugins=[stateful])
