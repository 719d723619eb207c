"""A plugin of pytest: notes each test's outcome at once, and leaves out tests that have passed.

The last line of the file is `{"end": true}` if no test is left. With workers (pytest-xdist), each
worker leaves tests out, and the process that started them notes the outcomes.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

LATE = "the time is over"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    parser.addoption("--outcomes", type=Path, help="a line of JSON for each test is added here")
    parser.addoption("--seconds", type=float, help="start no test later than this")


class Outcomes:
    """Writes the file of one run."""

    def __init__(self, path: Path, seconds: float, *, notes: bool) -> None:
        self.path, self.deadline = path, time.monotonic() + seconds
        self.notes = notes
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.late = False

    def passed(self) -> set[str]:
        """Return the tests that passed, or were skipped, in earlier runs."""
        if not self.path.exists():
            return set()
        lines = map(json.loads, self.path.read_text(encoding="utf-8").splitlines())
        last = {line["test"]: line["outcome"] for line in lines if "test" in line}
        return {test for test, outcome in last.items() if outcome != "failed"}

    def write(self, line: dict[str, object]) -> None:
        """Add a line."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out what has passed."""
        passed = self.passed()
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
        items[:] = [item for item in items if item.nodeid not in passed]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Stop before a test that would start too late."""
        if time.monotonic() > self.deadline:
            item.session.shouldstop = LATE
            pytest.skip(LATE)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note an outcome: of the call, or of a setup or teardown that did not pass."""
        self.late |= report.outcome == "skipped" and LATE in report.longreprtext
        needless = report.when != "call" and report.outcome == "passed"
        if self.late or needless or not self.notes:
            return
        text = report.longreprtext.strip().splitlines() if report.failed else [""]
        errors = [line for line in text if line.startswith("E ")] or text
        self.write(
            {
                "test": report.nodeid,
                "outcome": report.outcome,
                "seconds": round(report.duration, 2),
                "line": errors[0].removeprefix("E").strip()[:300],
            }
        )

    def pytest_sessionfinish(self) -> None:
        """Note that nothing is left."""
        if self.notes and not self.late:
            self.write({"end": True})


def pytest_configure(config: pytest.Config) -> None:
    """Begin."""
    here = Outcomes(
        config.option.outcomes, config.option.seconds, notes=not hasattr(config, "workerinput")
    )
    config.pluginmanager.register(here, "first-minutes-outcomes")
