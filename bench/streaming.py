"""Compare streamed with resident training on a CPU: speed, peak bytes, fetches, overlap.

    python bench/streaming.py [--json PATH] [--trace PATH] [--rounds N] [--quick]
    python bench/streaming.py --large --rounds 3 --steps 1 --page README.md

A subject is one way to stream, or training with resident blocks. Every subject trains the same
decoder with AdamW on one thread. In each round every subject makes the same number of steps, in an
order that changes from round to round; ratios are computed for each round. The CPU is used as the
device. So the figures show the cost of streaming, not its gain on a GPU. Peaks are counted by
torch's profiler, not read from the process.
`--large` uses one larger model and the README's subjects. `--page` writes the table of `--large`
into the page.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from scaling.table import put_into
from streaming_ways.timeline import overlap, timeline, trace
from streaming_ways.ways import (
    LARGE,
    NAMES,
    PLAIN,
    QUICK,
    README,
    RECOMPUTED,
    SIZES,
    WAYS,
    Size,
    Subject,
    subjects,
)
from streaming_ways.ways import most_allocated as most

from neaptide_toolkit.machine.facts import facts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_FEWEST_ROUNDS = 2
_MIB, _GIB = 2**20, 2**30
_HEAD = (
    "| size | subject | steps/s | quartiles | x resident, recompute | x resident | peak MiB "
    "| fetches (waited for) | overlap |"
)
_README_HEAD = "| enabled | peak on the device | kept in RAM |"


def measure(found: dict[str, Subject], rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the seconds per step by subject, one figure per round.

    Two earlier steps of each subject warm up and are not counted.
    """
    order, shuffle = list(found), random.Random(0)  # noqa: S311 - random order, no secret
    for subject in found.values():
        for _ in range(2):
            subject.step()
    taken: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            start = time.perf_counter()
            for _ in range(steps):
                found[name].step()
            taken[name].append((time.perf_counter() - start) / steps)
    return taken


def row(
    size: Size, name: str, taken: dict[str, list[float]], subject: Subject, share: float | None
) -> dict[str, Any]:
    """Return the figures of one way to train, at one size of the model.

    One more step is made to count bytes and fetches.
    """
    low, _, high = statistics.quantiles(taken[name], n=4, method="inclusive")
    held, before = subject.held(), subject.fetched()
    peak = held + most(subject.step)
    after = subject.fetched()
    return {
        "size": size.name,
        "parameters": size.shape.parameters,
        "tokens": size.samples * size.sequence,
        "subject": name,
        "steps_per_s": 1 / statistics.median(taken[name]),
        "steps_per_s_quartiles": [1 / high, 1 / low],
        "x_resident_recompute": ratio(taken[RECOMPUTED], taken[name]),
        "x_resident": ratio(taken[PLAIN], taken[name]),
        "peak_device_bytes": peak,
        "held_device_bytes": held,
        "held_ram_bytes": subject.held_in_ram(),
        "loss": subject.loss,
        "fetches_a_step": after[0] - before[0],
        "waited_for_a_step": after[1] - before[1],
        "overlap": share,
    }


def ratio(base: Sequence[float], taken: Sequence[float]) -> dict[str, Any]:
    """Return the speed of `taken` relative to `base`: the median and the quartiles over rounds."""
    low, middle, high = statistics.quantiles(
        [one / other for one, other in zip(base, taken, strict=True)], n=4, method="inclusive"
    )
    return {"median": middle, "quartiles": [low, high]}


def measured(size: Size, names: Collection[str], rounds: int, steps: int) -> list[dict[str, Any]]:
    """Return the rows of the named subjects for one size."""
    found = subjects(size, names)
    taken = measure(found, rounds, steps)
    shape = size.shape
    shares = {
        way.name: overlap(
            timeline(shape, size.samples, size.sequence, way.settings(shape.blocks), steps)
        )
        for way in WAYS
        if way.name in names
    }
    rows = [row(size, name, taken, each, shares.get(name)) for name, each in found.items()]
    for each in found.values():
        each.trainer.close()
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a table."""
    lines = [_HEAD, re.sub(r"[^|]+", "---", _HEAD)]
    for each in rows:
        low, high = each["steps_per_s_quartiles"]
        share = "" if each["overlap"] is None else f"{each['overlap']:.0%}"
        fetches = f"{each['fetches_a_step']} ({each['waited_for_a_step']})"
        lines.append(
            f"| {each['size']} | {each['subject']} | {each['steps_per_s']:.1f} "
            f"| {low:.1f}-{high:.1f} | {each['x_resident_recompute']['median']:.2f} "
            f"| {each['x_resident']['median']:.2f} | {each['peak_device_bytes'] / _MIB:.2f} "
            f"| {fetches} | {share} |"
        )
    return "\n".join(lines)


def readme(rows: Sequence[dict[str, Any]]) -> str:
    """Return the README's table: the bytes on the device and in RAM for each row of `README`."""
    found = {each["subject"]: each for each in rows}
    lines = [_README_HEAD, re.sub(r"[^|]+", "---", _README_HEAD)]
    for enabled, name in README.items():
        sizes = [found[name][key] / _GIB for key in ("peak_device_bytes", "held_ram_bytes")]
        lines.append(f"| {enabled} | {sizes[0]:.2f} GiB | {sizes[1]:.2f} GiB |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print a table, write JSON and the trace."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="PATH", help="write all figures here")
    parser.add_argument(
        "--trace", type=Path, metavar="PATH", help="write a trace of copies and blocks for Perfetto"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=2, help="steps of a subject in a round")
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--quick", action="store_true", help="one tiny size, for a first look")
    model.add_argument(
        "--large", action="store_true", help="one large size, with the README's subjects"
    )
    parser.add_argument(
        "--page", type=Path, metavar="PATH", help="write the README's table into this page"
    )
    options = parser.parse_args()
    if options.rounds < _FEWEST_ROUNDS:
        parser.error(
            f"--rounds must be at least {_FEWEST_ROUNDS}: {options.rounds} has no quartiles"
        )
    torch.set_num_threads(1)
    sizes = QUICK if options.quick else LARGE if options.large else SIZES
    names = tuple(README.values()) if options.large else NAMES
    load = [os.getloadavg()[0]]
    rows = [row for size in sizes for row in measured(size, names, options.rounds, options.steps)]
    load.append(os.getloadavg()[0])
    print(table(rows))
    if options.page:
        put_into(options.page, readme(rows))
    if options.trace:
        size, way = sizes[-1], WAYS[-4]
        settings = way.settings(size.shape.blocks)
        spans = timeline(size.shape, size.samples, size.sequence, settings, options.steps)
        options.trace.write_text(json.dumps(trace(spans)) + "\n", encoding="utf-8")
    if options.json:
        report = {
            "machine": facts(),
            "threads": 1,
            "load_before_and_after": load,
            "rounds": options.rounds,
            "steps": options.steps,
            "rows": rows,
        }
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
