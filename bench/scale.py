"""Train models of 124M to 50B parameters in limited GPU memory: streamed, and in other ways.

    python bench/scale.py --json docs/benchmarks/scale.json --page docs/benchmarks/scale.md

Every configuration runs in its own process, the smallest model first. Each finished row is stored
in a file next to the JSON file, with the suffix `.lines`. A rerun skips configurations that were
measured, or that ran out of memory, on the same device. A configuration is not run if its computed
memory does not fit into RAM. `--plan` prints the planned runs, and runs nothing. `--from-disk`
simulates the 50B model with its state on a drive, and runs nothing either. `--simulated all` plans
the streamed configurations on several cards; rows that the JSON file has are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scaling import from_disk, on_cards
from scaling.configurations import configurations
from scaling.one import measure, name_of, plan, refused
from scaling.table import compared, put_into, table

from neaptide_toolkit.machine.facts import facts, memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from scaling.configurations import Configuration

NO_GPU = 3
FINAL = ("measured", "smoke test", "out of memory")
"""Outcomes of configurations that a rerun on the same device does not measure again."""


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the rows here")
    parser.add_argument("--page", type=Path, metavar="PATH", help="put the table into this page")
    parser.add_argument(
        "--only",
        default="*",
        metavar="PATTERN",
        help="configurations to run, such as `c3-7b-24gb-*`",
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=1800.0,
        metavar="SECONDS",
        help="time limit of one configuration",
    )
    parser.add_argument(
        "--plan", action="store_true", help="print the planned runs with their computed bytes"
    )
    parser.add_argument(
        "--ram-gib",
        type=float,
        metavar="GIB",
        help="RAM to plan for; by default the RAM of this machine",
    )
    parser.add_argument(
        "--tiny", action="store_true", help="test the program with toy models, also on a CPU"
    )
    parser.add_argument(
        "--from-disk", action="store_true", help="simulate the 50B model with its state on a drive"
    )
    parser.add_argument(
        "--simulated", metavar="CARDS", help="plan for these cards: `all`, or as in `h200,t4`"
    )
    parser.add_argument("--one", metavar="KEY", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def kept(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the rows of earlier runs by key. An incomplete line is ignored."""
    rows = {}
    if path is not None and path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            rows[row["key"]] = row
    return rows


def keep(path: Path, row: dict[str, Any]) -> None:
    """Append a row as a new line, even if the file ends with an incomplete line."""
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        torn = file.read() not in (b"", b"\n")
        file.write((b"\n" if torn else b"") + json.dumps(row).encode() + b"\n")


def run(configuration: Configuration, limit: float) -> dict[str, Any]:
    """Measure one configuration in its own process.

    Return its row, even if the measurement fails.
    """
    command = [sys.executable, __file__, "--one", configuration.key]
    if configuration.tiny:
        command.append("--tiny")
    try:
        done = subprocess.run(  # noqa: S603 - this script
            command, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {**plan(configuration), "outcome": "failed", "reason": f"stopped after {limit:g} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode == 0 and lines:
        row: dict[str, Any] = json.loads(lines[-1])
        return row
    last = next(reversed(done.stderr.strip().splitlines()), "")
    reason = f"ended with status {done.returncode}: {last[:200]}"
    return {**plan(configuration), "outcome": "failed", "reason": reason}


def report(
    options: argparse.Namespace, chosen: Sequence[Configuration], rows: dict[str, dict[str, Any]]
) -> str:
    """Write the requested files, and return the table."""
    room = None
    if options.plan:
        room = memory().limit if options.ram_gib is None else int(options.ram_gib * 2**30)
    listed = compared([rows.get(each.key) or plan(each, room) for each in chosen])
    text = table(listed)
    if options.json:
        machine = None if options.plan else facts()
        content = {"machine": machine, "tiny": options.tiny, "rows": listed}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    if options.page:
        put_into(options.page, text)
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the missing configurations; return the exit status, 1 if one of them failed."""
    options = arguments(argv)
    if options.from_disk:
        return from_disk.write(options.json, options.page)
    if options.simulated:
        return on_cards.write(options.simulated, options.only, options.json, options.page)
    gpu = torch.cuda.is_available()
    if not (gpu or options.plan or options.tiny):
        print(
            f"scale: torch {torch.__version__} finds no NVIDIA GPU; --plan prints the planned "
            "runs, --tiny tests the program on the CPU",
            file=sys.stderr,
        )
        return NO_GPU
    every = configurations(tiny=options.tiny)
    device = torch.device("cuda", 0) if gpu and not options.plan else torch.device("cpu")
    if options.one:
        torch.set_num_threads(1 if options.tiny else torch.get_num_threads())
        chosen = next(each for each in every if each.key == options.one)
        print(json.dumps(measure(chosen, device)))
        return 0
    found = [each for each in every if fnmatch(each.key, options.only)]
    if not found:
        print(f"scale: --only {options.only!r} matches none: {every[0].key}, …", file=sys.stderr)
        return 2
    lines = options.json.with_suffix(".lines") if options.json else None
    rows = {} if options.plan else kept(lines)
    for each in found:
        earlier = rows.get(each.key, {"outcome": None, "device": None})
        known = earlier["outcome"] in FINAL and earlier.get("device") == name_of(device)
        if options.plan or known:
            continue
        row = rows[each.key] = refused(each, device) or run(each, options.limit)
        print(f"{each.key}: {row['outcome']}", file=sys.stderr, flush=True)
        if lines is not None:
            keep(lines, row)
        report(options, found, rows)
    print(report(options, found, rows))
    return int(any(row["outcome"] == "failed" for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
