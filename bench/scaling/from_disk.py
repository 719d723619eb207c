"""The 50B model with its state on a drive, by the plan: nothing is measured."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from neaptide.config import by_name
from neaptide.config.tables import overlay
from neaptide.hooks.enabling import configured
from neaptide_toolkit.machine import profiles
from neaptide_verbs.plan.machine import PlannedMachine
from neaptide_verbs.plan.planning import plan
from scaling.table import put_into

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "llama-50b-24gb-disk.toml"
PROFILE, CARD, RAM, DRIVE, RATE = "rtx4090", 24 * 2**30, 128 * 2**30, 10**12, 7e9
"""A profile of rates; bytes of the card, of RAM and of the drive; bytes/s of the drive."""
CASES: dict[str, dict[str, Any]] = {
    "attention and MLP as blocks, two slots": {},
    "whole blocks, one slot": {
        "model": {"options": {"halves": False}},
        "plugins": {
            "layer-streaming": {"max_active_layers": 1, "optimizer_slots": 1, "ram_gib": 90.0}
        },
    },
}
BEGIN, END = "<!-- from a drive: begin -->", "<!-- from a drive: end -->"
LANES = ("disk", "compute", "to device", "to host")


def planned(case: str, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the row of a case: bytes by tier, seconds, and those in which each engine is busy.

    `more` are settings, for tests.
    """
    sys.path.insert(0, str(ROOT))  # the example names examples.decoders
    given = by_name("toml").loads(EXAMPLE.read_text(encoding="utf-8"))
    given = overlay(overlay(given, CASES[case]), more or {})
    rates = attrs.evolve(profiles.load(PROFILE).rates, disk_read=RATE, disk_write=RATE)
    machine = PlannedMachine(name=PROFILE, device=CARD, host=RAM, disk=DRIVE, rates=rates)
    made = plan(configured(given)[0], machine)
    return {
        "case": case,
        "fits": made.fits,
        "bytes": made.peak_bytes,
        "seconds": made.seconds_per_step,
        "tokens": made.tokens_per_second,
        "bound": made.bound_by,
        "busy": dict(made.busy),
    }


def rows() -> Iterator[dict[str, Any]]:
    """Yield the row of each case."""
    for case in CASES:
        yield planned(case)


def write(file: Path | None, page: Path | None) -> int:
    """Write the rows to the file, and the table into the page; return 1 if a case does not fit."""
    found = [*rows()]
    if file is not None:
        file.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    if page is not None:
        put_into(page, table(found), BEGIN, END)
    sys.stdout.write(f"{table(found)}\n")
    return int(not all(row["fits"] for row in found))


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    names = ("card GB", "RAM GB", "drive GB", "s a step", *(f"{lane}, s" for lane in LANES))
    head = ("50B, 16 windows of 2,048", *names, "tokens/s", "bound by", "busy")
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for row in found:
        sizes = (f"({row['bytes'][tier] / 1e9:.1f})" for tier in ("device", "RAM", "disk"))
        busy = (f"{row['busy'][lane]:.0f}" for lane in LANES)
        share = row["busy"][row["bound"]] / row["seconds"]
        what = row["case"] if row["fits"] else f"{row['case']} (does not fit)"
        last = (f"{row['tokens']:.0f}", row["bound"], f"{share:.2f}")
        lines.append(
            "| " + " | ".join((what, *sizes, f"{row['seconds']:.0f}", *busy, *last)) + " |"
        )
    return "\n".join(lines)
