"""The tests that take long: of the functions in `tests/long.txt`, only some cases run each time.

On the simulated GPU, only some of the cases that are left run, by `tests/long_simulated.txt`. The
lists are made from measured runs:

    pytest -n 2 -m "slow or not slow" --junitxml FILE
    python tests/helpers/long_tests.py FILE > tests/long.txt
    pytest -n 2 --simulated-gpu --junitxml FILE
    python tests/helpers/long_tests.py FILE 8 20 > tests/long_simulated.txt

The numbers are SHARE and ALONE. A line is a function and how many of its cases run, spread evenly;
the others are marked slow.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pytest

LIST, SIMULATED = (Path(__file__).resolve().parents[1] / name for name in (
    "long.txt", "long_simulated.txt"
))  # fmt: skip
SHARE, ALONE = 1.0, 6.0
"""Seconds that all cases of a function may take, and that one case may."""
MORE = {
    "tests/contract/test_every_plugin.py::test_plugin_keeps_law": 30.0,
    "tests/core/cli/test_killed.py::test_a_killed_run_goes_on_from_its_newest_checkpoint": 30.0,
    "tests/core/run/test_resume.py::test_resume_from_every_step_is_bitwise": 30.0,
    "tests/kernels/test_interpreted.py::test_kernels_agree_in_the_interpreter": 30.0,
    "tests/toolkit/integrations/test_transformers_resume.py"
    "::test_a_resumed_training_ends_like_one_that_was_not_stopped": 30.0,
    "tests/toolkit/integrations/test_lightning.py"
    "::test_a_fit_goes_on_from_its_own_and_from_plain_checkpoints": 30.0,
}
"""Seconds of those that check a promise which nothing quicker checks."""


def listed(path: Path) -> dict[str, int]:
    """Return how many cases run, by `"path::function"`."""
    lines = (line.rsplit(" ", 1) for line in path.read_text(encoding="utf-8").splitlines())
    return {name: int(count) for name, count in lines}


def rest_of(cases: list[pytest.Item], count: int) -> Iterator[pytest.Item]:
    """Yield all but `count` of the cases, which are spread evenly."""
    count = min(count, len(cases))
    kept = {place * len(cases) // count for place in range(count)}
    yield from (case for place, case in enumerate(cases) if place not in kept)


def left_out(items: Iterable[pytest.Item], path: Path) -> Iterator[pytest.Item]:
    """Yield the cases that are slow by a list."""
    counts, cases = listed(path), defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    for name in counts.keys() & cases.keys():
        yield from rest_of(cases[name], counts[name])


def chosen(
    seconds: dict[str, list[float]], most: float = SHARE, alone: float = ALONE
) -> Iterator[tuple[str, int]]:
    """Yield the functions that take too long, and how many of their cases run."""
    for name, each in sorted(seconds.items()):
        share, mean = max(most, MORE.get(name, 0.0)), sum(each) / len(each)
        longest = max(alone, MORE.get(name, 0.0))
        if len(each) == 1 or mean > 2 * longest:
            if mean > longest:
                yield name, 0
        elif sum(each) > share and (count := max(1, int(share / mean))) < len(each):
            yield name, count


def measured(report: Path) -> dict[str, list[float]]:
    """Return the seconds of each case by function, from a report in JUnit's format."""
    found = defaultdict(list)
    for case in ET.parse(report).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/")
        function = re.sub(r"\[.*", "", case.attrib["name"], flags=re.DOTALL)
        found[f"{path}.py::{function}"].append(float(case.attrib["time"]))
    return found


if __name__ == "__main__":
    for line in chosen(measured(Path(sys.argv[1])), *map(float, sys.argv[2:])):
        sys.stdout.write("{} {}\n".format(*line))
