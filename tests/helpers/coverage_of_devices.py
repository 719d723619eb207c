"""Says which lines and branches that mention a device a run covered, and fails below the share.

Usage: python coverage_of_devices.py REPORT.json, where the report is of `coverage json`.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

from device_branches import Way, mentions, ways

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("core", "plugins", "kernels")
LEAST = 0.95


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
    return tomllib.loads((ROOT / "tests/simulated_gpu/not_covered.toml").read_text("utf-8"))


def main(report: Path) -> int:
    """Print the share and what is missing; return 1 if the share is too small.

    A line without a listed reason is told, and fails nothing: which of autograd's threads Python
    traces differs from run to run.
    """
    found = ways_of(report)
    missing = {(way.path, way.text) for way in found if not way.covered}
    listed = {(path, text): why for path, rest in reasons().items() for text, why in rest.items()}
    share = 1 - sum(not way.covered for way in found) / len(found)
    lines = [f"{share:.1%} of {len(found)} lines and branches that mention a device were covered"]
    lines += [
        f"  {path}: {text}: {listed.get((path, text), 'not covered, and no reason is listed')}"
        for path, text in sorted(missing)
    ]
    sys.stdout.write("\n".join([*lines, ""]))
    return int(share < LEAST)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
