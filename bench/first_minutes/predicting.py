"""Compares measured steps of `scale.py` with the same steps on the simulated device."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .running import ROOT, run

if TYPE_CHECKING:
    from collections.abc import Iterable

SUBJECTS = ("streamed", "resident")
"""What can be simulated with data that has shapes only; others compute on the host."""
BYTES_A_PARAMETER = 4.5
"""RAM that simulating a streamed step takes: the blocks' weights, twice while they are built."""
HEAD = "| step | measured s | predicted s | ratio | measured peak GB | predicted peak GB | ratio |"


def measured(document: dict[str, Any]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
    """Return the profile of a record, and its rows of `scale.py` that have a time of the device."""
    slices = document["slices"]
    profile = slices.get("b", {}).get("profile", {}).get("result")
    entries = slices.get("d", {}).values()
    rows = [row for each in entries for row in (each.get("result") or {"rows": []})["rows"]]
    return profile, [row for row in rows if row.get("device_seconds_a_step")]


def lack_of_ram(row: dict[str, Any]) -> str | None:
    """Return the reason why a row cannot be simulated in the RAM that is free, or None."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    found = {name: text for name, _, text in (line.partition(":") for line in lines)}
    free = int(found["MemAvailable"].split()[0]) * 1024
    needed = BYTES_A_PARAMETER * row["parameters"] if row["subject"] == "streamed" else 0
    if needed <= free:
        return None
    return f"simulating it needs {needed / 1e9:.0f} GB of RAM, {free / 1e9:.0f} GB are free"


def predicted(
    row: dict[str, Any], profile: Path, limit: float, environment: dict[str, str]
) -> dict[str, Any]:
    """Return the row's measured and predicted seconds and bytes, or the reason why not."""
    found: dict[str, Any] = {"key": row["key"]}
    if row["subject"] not in SUBJECTS:
        return {**found, "reason": f"{row['subject']} computes on the host"}
    if reason := lack_of_ram(row):
        return {**found, "reason": reason}
    script = ROOT / "bench" / "first_minutes" / "one_prediction.py"
    on_device = ["-m", "simulated_gpu", "--profile", str(profile)]
    done = run([sys.executable, *on_device, str(script), row["key"]], limit, environment)
    lines = [line for line in done.out.splitlines() if line.startswith("{")]
    if done.status != 0 or not lines:
        last = next(reversed(done.err.strip().splitlines()), "")
        how = f"stopped after {limit:.0f} s" if done.status is None else f"status {done.status}"
        return {**found, "outcome": "failed", "reason": f"{how}: {last[:200]}"}
    other = json.loads(lines[-1])
    return {
        **found,
        "simulation_seconds": done.seconds,
        "measured_seconds": statistics.median(row["device_seconds_a_step"]),
        "predicted_seconds": statistics.median(other["device_seconds_a_step"]),
        "measured_bytes": row["peak_device_bytes"],
        "predicted_bytes": other["peak_device_bytes"],
    }


def table(rows: Iterable[dict[str, Any]]) -> str:
    """Return the comparison; a ratio is the predicted figure divided by the measured one."""
    lines = [HEAD, "|---" * (HEAD.count("|") - 1) + "|"]
    reasons = []
    for row in rows:
        if "reason" in row:
            reasons.append(f"- {row['key']}: {row['reason']}")
            continue
        seconds = row["measured_seconds"], row["predicted_seconds"]
        peaks = row["measured_bytes"] / 1e9, row["predicted_bytes"] / 1e9
        lines.append(
            f"| {row['key']} | {seconds[0]:.3f} | {seconds[1]:.3f} | {seconds[1] / seconds[0]:.2f} "
            f"| {peaks[0]:.2f} | {peaks[1]:.2f} | {peaks[1] / peaks[0]:.3f} |"
        )
    return "\n".join([*lines, "", "Not compared:", "", *reasons] if reasons else lines)
