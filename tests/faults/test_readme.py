"""The table of faults names files that are there, and every file of this folder."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
NAMED = set(
    re.findall(r"`([\w./]+\.(?:py|c)|\.\./[\w/]+/)`", (HERE / "README.md").read_text("utf-8"))
)


def test_what_the_table_names_is_there() -> None:
    assert len(NAMED) > 30
    assert [] == [name for name in sorted(NAMED) if not (HERE / name).exists()]


def test_each_test_is_in_the_table() -> None:
    tests = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert [] == sorted(tests - NAMED)
