"""Show which engine binds a streamed step of 7B and 50B parameters, and where it waits. Simulated.

    python bench/simulated/timelines.py --json docs/benchmarks/timelines.json \
        --page docs/benchmarks/timelines.md

A model trains three steps on the simulated GPU, without values, with the rates of a profile; the
third is looked at. Nothing is measured. Each case runs in a process of its own, for a minute or
two, and its row is kept at once: a rerun makes those that are missing. `--only` makes the named
ones again. `--name before` keeps rows of other code: call it with the PYTHONPATH of that code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import attrs

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from scaling.configurations import Configuration
from scaling.table import put_into

GIGA, GIB = 10**9, 2**30
CUDA = 943 * 2**20
"""Bytes of a card that CUDA takes: `neaptide_verbs.plan.machine.CONTEXT`, rounded up."""
CARDS = {"h200": 24 * GIGA, "rtx4090": 24 * GIB - CUDA, "rtx3090": 24 * GIB - CUDA}
"""Bytes of device memory, by profile. Of the H200 they are a cap."""
NAMES = {"h200": "H200, cap 24 GB", "rtx4090": "RTX 4090", "rtx3090": "RTX 3090"}
SLOTS = {"max_active_layers": 3, "prefetch_distance": 2, "optimizer_slots": 4}
"""As many as 7B leaves room for."""
BEGIN, END = "<!-- timelines: begin -->", "<!-- timelines: end -->"


@attrs.frozen
class Case:
    """A model on a card."""

    name: str
    profile: str
    model: str
    tokens: int
    sequence: int
    pieces: int
    halves: bool = False
    settings: dict[str, Any] = attrs.field(factory=dict)

    @property
    def configuration(self) -> Configuration:
        """Return the case as `scale.py` has it."""
        return Configuration(
            "timeline", self.model, 24, self.tokens, self.sequence, halves=self.halves
        )


def cases() -> dict[str, Case]:
    """Return every case by its name."""
    found = []
    for profile in CARDS:
        for tokens, sequence in ((16_384, 2048), (32_768, 4096)):
            short = f"7b-{tokens // 1024}k-{profile}"
            found.append(Case(short, profile, "7b", tokens, sequence, 1))
            if profile == "h200":
                found.append(
                    Case(f"{short}-slots", profile, "7b", tokens, sequence, 1, settings=SLOTS)
                )
        found.append(Case(f"50b-16k-{profile}", profile, "50b", 16_384, 2048, 8, halves=True))
    return {case.name: case for case in found}


def made(case: Case) -> dict[str, Any]:
    """Simulate a case in this process."""
    from scaling.simulation import train  # noqa: PLC0415 - it becomes the simulated machine
    from scaling.waits import as_json, steady  # noqa: PLC0415

    cap = CARDS[case.profile]
    traced = train(case.configuration, case.profile, cap, case.pieces, case.settings)
    return as_json(steady(traced), traced, case.tokens)


def in_a_process(case: Case) -> dict[str, Any]:
    """Simulate a case in a process of its own."""
    program = ["-m", "simulated_gpu", __file__]
    command = [sys.executable, "-W", "ignore", *program, "--one", case.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - ours
    if done.returncode:
        msg = f"{case.name}: {done.stderr[-2000:]}"
        raise SystemExit(msg)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Return the rows as Markdown: before, after, and the charts."""
    head = (
        "| case | binds | busy | seconds a step | tokens/s | waits for, s | launches "
        "| allocated, reserved GB |"
    )
    lines = [head, "|---" * 8 + "|"]
    for name, case in cases().items():
        for which in ("before", "after"):
            row = rows.get(f"{name} {which}")
            if row is None:
                continue
            model = case.model.upper()
            more = ", 3 and 4 slots" if case.settings else ""
            what = f"{model}, {case.tokens // 1024}k, {NAMES[case.profile]}{more}: {which}"
            waits = "; ".join(
                f"{why} {seconds:.2f}"
                for why, seconds in [*row["waits"].items()][:3]
                if seconds >= row["seconds"] / 500
            )
            lines.append(
                f"| {what} | {row['bound'].replace('_', ' ')} | {row['share']:.3f} "
                f"| {row['seconds']:.2f} | {row['tokens_per_s']:.0f} | {waits} "
                f"| {row['launches']} | {row['allocated'] / 1e9:.1f}, {row['reserved'] / 1e9:.1f} |"
            )
    return "\n".join([*lines, *_charts(rows)])


def _charts(rows: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    named = [f"{name} {which}" for name in cases() for which in ("before", "after")]
    for name in (one for one in named if one in rows):
        row = rows[name]
        lines += ["", f"{name}, {row['seconds']:.2f} s, simulated:", "", "```text"]
        for engine, chart in row["chart"].items():
            lines.append(f"{engine.replace('_', ' '):<10}{chart} {row['busy'][engine]:.2f} s")
        lines.append("```")
    return lines


def main() -> int:
    """Make the rows that are missing, and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--only", metavar="PATTERN", help="such as `7b-16k-*`; made again")
    parser.add_argument("--name", default="after", choices=("before", "after"))
    parser.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(made(cases()[given.one])), flush=True)
        os._exit(0)  # a model of this size need not be taken apart
    there = given.json is not None and given.json.exists()
    rows: dict[str, dict[str, Any]] = json.loads(given.json.read_text("utf-8")) if there else {}
    for name, case in cases().items():
        chosen = fnmatch(name, given.only) if given.only else f"{name} {given.name}" not in rows
        if not chosen:
            continue
        rows[f"{name} {given.name}"] = in_a_process(case)
        if given.json:
            given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if given.page:
        put_into(given.page, table(rows), BEGIN, END)
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
