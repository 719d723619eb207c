"""Says which lines and branches that mention a device a run covered.

Fails where the share is too small, and where a line was left out without a listed reason.

Usage: python coverage_of_devices.py REPORT.json, where the report is of `coverage json`.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import attrs
from device_branches import Way, mentions, ways

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core", "plugins", "kernels")
LEAST = 0.95
LISTED = "tests/simulated_gpu/not_covered.toml"


def files() -> list[Path]:
    """Return the files of the sources that mention a device."""
    found = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if mentions(ROOT, path)]


def ways_of(report: Path) -> list[Way]:
    """Return every way of every mention; a file that no test imported has none covered."""
    measured = json.loads(report.read_text("utf-8"))["files"]
    return [
        way
        for path in files()
        for mention in mentions(ROOT, path)
        for way in ways(mention, measured.get(mention.path))
    ]


def reasons() -> dict[str, dict[str, str]]:
    """Return, by file and text, why a way is not covered."""
    return tomllib.loads((ROOT / LISTED).read_text("utf-8"))


@attrs.frozen
class Verdict:
    """What a run left out."""

    share: float
    count: int
    missing: list[tuple[str, str]]
    """File and text of each way that no test went, sorted."""
    unlisted: list[tuple[str, str]]
    """Those without a reason."""

    @property
    def fails(self) -> bool:
        """Whether the share is too small, or a way without a reason was not gone."""
        return self.share < LEAST or bool(self.unlisted)


def judged(found: list[Way], listed: dict[str, dict[str, str]]) -> Verdict:
    """Judge the ways of a run by the reasons that are listed."""
    missing = sorted({(way.path, way.text) for way in found if not way.covered})
    unlisted = [(path, text) for path, text in missing if text not in listed.get(path, {})]
    share = 1 - sum(not way.covered for way in found) / len(found)
    return Verdict(share, len(found), missing, unlisted)


def main(report: Path) -> int:
    """Print the share and what is missing; return 1 if the share is too small, or a reason misses.

    A listed line may be covered all the same: which of autograd's threads Python traces differs
    from run to run.
    """
    listed = reasons()
    verdict = judged(ways_of(report), listed)
    said = f"{verdict.share:.1%} of {verdict.count} lines and branches that mention a device"
    lines = [f"{said} were covered"]
    for path, text in verdict.missing:
        why = listed.get(path, {}).get(
            text, f"NOT COVERED: test it, or list the reason in {LISTED}"
        )
        lines.append(f"  {path}: {text}: {why}")
    sys.stdout.write("\n".join([*lines, ""]))
    return int(verdict.fails)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
