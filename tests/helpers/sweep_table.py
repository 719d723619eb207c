"""Writes the counts of the sweeps into a page: `python sweep_table.py RESULTS.xml... PAGE.md`."""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

START, END = "<!-- counts -->", "<!-- end of counts -->"
KINDS = ("exact", "refused", "listed", "wrong", "foreign")
NAMES = {
    "test_modules": "Modules of torch",
    "test_optimizers": "Optimizers of torch",
    "test_random_nets": "Random nets",
}

Rows = Counter[tuple[str, str, str, str]]


def rows_of(files: list[Path]) -> tuple[Rows, Counter[str]]:
    """Return how often each sweep, way, kind and reason came out, and the cases of each sweep."""
    rows: Rows = Counter()
    cases: Counter[str] = Counter()
    parts: dict[tuple[str, str], dict[str, str]] = {}
    for file in files:  # a later file replaces the parts that it has
        for test in ET.parse(file).iter("testcase"):
            sweep = str(test.get("classname")).rpartition(".")[2]
            found = {str(one.get("name")): str(one.get("value")) for one in test.iter("property")}
            if sweep in NAMES and found:
                parts[sweep, str(test.get("name"))] = found
    for (sweep, _), found in parts.items():
        cases[sweep] += int(found["cases"])
        for way, kind, reason, number in json.loads(found["counts"]):
            rows[sweep, way, kind, reason] += number
    return rows, cases


def _table(rows: Rows, sweep: str) -> list[str]:
    ways: dict[str, Counter[str]] = {}
    for (one, way, kind, _), number in rows.items():
        if one == sweep and way != "plain":
            name = "two plugins" if way.startswith("pair: ") else way
            ways.setdefault(name, Counter())[kind] += number
    lines = [f"| way | runs | {' | '.join(KINDS)} |", "|---" * (2 + len(KINDS)) + "|"]
    for way, counts in ways.items():
        numbers = [counts.total(), *(counts[kind] for kind in KINDS)]
        lines.append(f"| {way} | {' | '.join(f'{number:,}' for number in numbers)} |")
    return lines


def _reasons(rows: Rows, sweep: str, kind: str) -> list[str]:
    reasons: Counter[str] = Counter()
    for (one, _, which, reason), number in rows.items():
        if (one, which) == (sweep, kind):
            reasons[reason] += number
    return [
        f"- {number:,}: {' '.join(reason.split()).replace('<', '&lt;')}"
        for reason, number in reasons.most_common()
    ]


def text_of(rows: Rows, cases: Counter[str]) -> str:
    """Return the tables and the reasons."""
    lines: list[str] = []
    for sweep, title in NAMES.items():
        if not cases[sweep]:
            continue
        untrainable = sum(
            number for key, number in rows.items() if key[0] == sweep and key[2] == "untrainable"
        )
        lines += [f"### {title}", ""]
        lines += [
            f"{cases[sweep]:,} cases, of which plain PyTorch cannot train {untrainable:,}.",
            "",
        ]
        lines += [*_table(rows, sweep), ""]
        for kind, told in (("refused", "Refused"), ("untrainable", "Not trained by plain PyTorch")):
            reasons = _reasons(rows, sweep, kind)
            if reasons:
                lines += [f"{told}, by reason:", "", *reasons, ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Replace the counts in the page."""
    *files, page = map(Path, arguments)
    before, _, rest = page.read_text("utf-8").partition(START)
    _, _, after = rest.partition(END)
    text = text_of(*rows_of(files))
    page.write_text(f"{before}{START}\n\n{text}\n{END}{after}", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
