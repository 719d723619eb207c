"""Measure everything that needs a GPU, in the order of its worth, into one file.

    python bench/gpu.py [--slices a,b,c] [--only PATTERN] [--minutes 9] [--out runs/gpu]
    python bench/gpu.py --compare gpu.json
    python bench/gpu.py --dry-run

A slice is a group of steps: a) tests on the device, b) facts and rates of the machine, c) kernels
and their rivals, d) models of 1.5 and 7 billion parameters, e) the other benchmarks. A step is a
program with a time limit. Each slice ends after `--minutes`; the next call goes on with what is
left, and repeats what failed. The file has no names of hosts, users or folders.
`--compare` is slice f, on a machine with the simulated GPU: it predicts the measured steps from the
measured rates. `--dry-run` runs small versions of all steps on the simulated GPU; the word
`simulated` stands in the place of each figure.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from first_minutes import predicting, record
from first_minutes.running import ROOT, entry, environment, problems_of, run, workers_of
from first_minutes.steps import SLICES, STEPS, Step

if TYPE_CHECKING:
    from collections.abc import Sequence

DONE, INCOMPLETE, REFUSED = 0, 1, 2
PATIENCE = 4
"""By how much limits are longer in a dry run: others may use the CPU that simulates the GPU."""
LEAST = 20.0
"""Seconds under which no step is started."""
PREDICTION_LIMIT = 1200.0
SIMULATOR = "runs on another machine: python bench/gpu.py --compare gpu.json"


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--slices", default=",".join(SLICES), help="such as a,c (default: all)")
    parser.add_argument("--only", default="*", help="steps by name, such as 'c3-7b-*'")
    parser.add_argument("--minutes", type=float, help="limit of a slice (default: 9)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/gpu")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="predict what was measured")
    parser.add_argument("--dry-run", action="store_true", help="on the simulated GPU, tiny sizes")
    options = parser.parse_args(given)
    if options.minutes is not None and not options.minutes > 0:
        parser.error(f"--minutes: a number above 0 is needed (got {options.minutes})")
    options.slices = options.slices.split(",")
    if not any(fnmatch(step.name, options.only) for step in STEPS):
        parser.error(f"--only: no step is named {options.only!r}, such as {STEPS[-1].name!r}")
    if unknown := sorted(set(options.slices) - set(SLICES)):
        parser.error(f"--slices: {unknown[0]!r} is not one of {', '.join(SLICES)}")
    if options.minutes is None:
        options.minutes = 9.0 * (PATIENCE if options.dry_run else 1)
    if options.out is None:
        options.out = ROOT / "runs" / ("gpu-simulated" if options.dry_run else "gpu")
    return options


def device_of(given: dict[str, str], *, simulated: bool) -> dict[str, Any]:
    """Return the facts of the device, asked in a process of its own."""
    script = str(ROOT / "bench" / "first_minutes" / "device.py")
    on_device = ["-m", "simulated_gpu"] if simulated else []
    done = run([sys.executable, *on_device, script], 120.0, given)
    if done.status != 0:
        return {"name": None, "problem": done.err.strip().splitlines()[-1:]}
    found: dict[str, Any] = json.loads(done.out.splitlines()[-1])
    return found


def due(document: dict[str, Any], part: str) -> list[Step]:
    """Return the steps of a slice to run: first those that never ran, then those that failed."""
    every = [step for step in STEPS if step.tiny or not document["simulated"]]
    known = [(record.entry_of(document, part, step.name), step) for step in every]
    steps = [(found, step) for found, step in known if step.slice == part]
    again = [step for found, step in steps if found and found["outcome"] not in record.FINAL]
    return [step for found, step in steps if found is None] + again


def run_slice(
    document: dict[str, Any], part: str, options: argparse.Namespace, given: dict[str, str]
) -> bool:
    """Run the due steps of a slice, and write the file after each. Return whether all are done."""
    deadline = time.monotonic() + options.minutes * 60
    parts = options.out / ("parts-simulated" if options.dry_run else "parts")
    workers = 1 if options.dry_run else workers_of(document["device"])
    complete = True
    for step in filter(lambda each: fnmatch(each.name, options.only), due(document, part)):
        left = deadline - time.monotonic()
        if left < min(LEAST, step.limit):
            print(f"{part}: {step.name}: no time is left; call again", flush=True)
            return False
        limit = min(step.limit * (PATIENCE if options.dry_run else 1), left)
        found = entry(step, parts, limit, given, simulated=options.dry_run, workers=workers)
        record.put(document, part, step.name, found)
        record.write(options.out / "gpu.json", document)
        print(told(part, step.name, found), flush=True)
        complete &= found["outcome"] in record.FINAL
        complete &= not (options.dry_run and "problems" in found)
    return complete


def told(part: str, name: str, found: dict[str, Any]) -> str:
    """Return the lines about a step for the terminal."""
    why = f" ({found['reason']})" if "reason" in found else ""
    lines = [f"{part}: {name}: {found['outcome']}{why}, {found.get('seconds', 0):.0f} s"]
    lines += [f"    {problem}" for problem in found.get("problems", ())]
    return "\n".join(lines + [f"    {line}" for line in found.get("last_lines", ())])


def compare(document: dict[str, Any], out: Path, given: dict[str, str]) -> list[dict[str, Any]]:
    """Predict the measured steps; print the table; write `compared.json`; return its rows."""
    profile, rows = predicting.measured(document)
    if profile is None or not rows:
        return [{"key": "all", "outcome": "failed", "reason": "slices b and d have no figures"}]
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        path.write_text(json.dumps(profile), encoding="utf-8")
        found = []
        for row in rows:
            found.append(predicting.predicted(row, path, PREDICTION_LIMIT, given))
            print(f"f: {row['key']}: {found[-1].get('reason', 'predicted')}", flush=True)
    content = {"device": document["device"]["name"], "profile": profile, "rows": found}
    if not document["simulated"]:
        text = json.dumps(content, indent=1) + "\n"
        (out / "compared.json").write_text(text, encoding="utf-8")
        print(predicting.table(found))
    return found


def last_slice(
    document: dict[str, Any], options: argparse.Namespace, given: dict[str, str]
) -> bool:
    """Note slice f: on a real device it has to run elsewhere."""
    if not options.dry_run:
        found: dict[str, Any] = {"outcome": "missing", "reason": SIMULATOR}
    else:
        rows = compare(document, options.out, given)
        problems = problems_of(rows)
        found = {"outcome": "failed" if problems else "done", "result": rows}
        found |= {"problems": problems} if problems else {}
    record.put(document, "f", "predictions", found)
    record.write(options.out / "gpu.json", document)
    print(told("f", "predictions", found), flush=True)
    return found["outcome"] in record.FINAL


def main(given: Sequence[str] | None = None) -> int:
    """Run what is left; return the exit status."""
    options = arguments(given)
    with tempfile.TemporaryDirectory() as site:
        own = environment(Path(site))
        if options.compare:
            try:
                document = record.read(options.compare)
            except (OSError, ValueError) as error:
                print(f"gpu: --compare: {error}", file=sys.stderr)
                return REFUSED
            rows = compare(document, options.compare.parent, own)
            return INCOMPLETE if problems_of(rows) else DONE
        device = device_of(own, simulated=options.dry_run)
        if device["name"] is None:
            why = device.get("problem") or "torch finds no GPU"
            print(f"gpu: {why}; --dry-run tests this command without one", file=sys.stderr)
            return REFUSED
        try:
            document = record.opened(options.out / "gpu.json", device, simulated=options.dry_run)
        except (record.OtherMachineError, ValueError) as error:
            print(f"gpu: {error}; give another --out", file=sys.stderr)
            return REFUSED
        if options.dry_run:
            shutil.rmtree(options.out / "parts-simulated", ignore_errors=True)
        complete = True
        for part in options.slices:
            print(f"-- {part}: {SLICES[part]}", flush=True)
            if part == "f":
                complete &= last_slice(document, options, own)
            else:
                complete &= run_slice(document, part, options, own)
    print(f"written: {options.out / 'gpu.json'}")
    return DONE if complete else INCOMPLETE


def stopped(number: int, _frame: object) -> None:
    """End this command and the step that runs: its group of processes is killed on the way out."""
    sys.exit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    sys.exit(main())
