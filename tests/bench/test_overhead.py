"""The overhead bench: every subject that can be measured here is, and what is missing is named."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from measuring import measured

if TYPE_CHECKING:
    from pathlib import Path

OURS = {
    "bare loop",
    "Neaptide, no plugins",
    "Neaptide, no plugins, check_finite off",
    "Neaptide, 8 idle plugins",
    "Neaptide, 6 shipped plugins",
    "Neaptide, no plugins, run directory",
}


@pytest.mark.slow
def test_all_that_is_there_is_measured_and_the_rest_named(tmp_path: Path) -> None:
    small = ("--rounds", "2", "--steps", "3")
    report, out, err = measured("overhead.py", tmp_path, *small)
    rows = {row["subject"]: row for row in report["rows"]}
    assert OURS <= rows.keys()
    for row in rows.values():
        assert row["subject"] in out
        assert row["us_a_step"] > 0.0
    assert 0.0 == rows["bare loop"]["over_bare_us"]
    assert ("Accelerate" in rows) == (find_spec("accelerate") is not None)
    assert ("Accelerate is left out" in err) == (find_spec("accelerate") is None)


def test_the_default_optimizer_is_measured_beside_the_plain_one(tmp_path: Path) -> None:
    small = ("--rounds", "2", "--steps", "1")
    report, _, _ = measured("overhead.py", tmp_path, "--optimizers", *small)
    rows = {row["subject"]: row for row in report["rows"]}
    nets = ("7k net", "10.7M MLP", "4.9M GPT")
    assert [f"{net}, {form}" for net in nets for form in ("fused = false", "default")] == [*rows]
    assert {0.0} == {rows[f"{net}, fused = false"]["over_bare_us"] for net in nets}
